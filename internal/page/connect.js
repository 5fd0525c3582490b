// Comes.
