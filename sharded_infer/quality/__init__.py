"""The differences between a version's scores and the fp32 model's."""
