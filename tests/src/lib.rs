//! End-to-end tests of nvfold.
