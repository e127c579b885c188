"""What each command of the command line does. Uses rich; torch is imported when a command runs."""
