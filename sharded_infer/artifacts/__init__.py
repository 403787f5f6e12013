"""The files of one version: checked, opened, mapped."""
