"""HTTP/1.1 connections: request parsing, answers, and limits for every client."""
