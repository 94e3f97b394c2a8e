//! What the cross-crate tests share. Nothing outside `tests/` may import this.
//!
//! | file | idea |
//! |---|---|
//! | `gateway_kit` | a gateway over scripted instances, driven with `oneshot` |
//! | `speaker` | the scripted instances and their model |

// All of this crate is tests: a poisoned lock is a failed test.
#![allow(clippy::unwrap_used)]

pub mod gateway_kit;
pub mod speaker;
