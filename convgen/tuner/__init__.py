"""The tuner: candidates proposed, built, verified, timed and remembered."""
