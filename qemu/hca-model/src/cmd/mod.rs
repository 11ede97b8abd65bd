//! The command interface and the command handlers.
