"""What a run says (`of_run`), and what to do about it (`advice`)."""
