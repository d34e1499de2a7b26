"""Integer noise as mathematics: its laws (`law`) and what rounding to a grid costs (`grid`)."""
