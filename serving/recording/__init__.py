"""Recording of predict calls: requests as they were sent, and their scores."""
