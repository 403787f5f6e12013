"""HTTP/1.1 connections: requests read from bytes, answers written, limits for every client."""
