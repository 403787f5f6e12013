"""Makes the files of a release: wheels, source distribution, SBOM and checksums."""
