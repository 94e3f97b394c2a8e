//! What the cross-crate tests share. Nothing outside `tests/` may import this.
//!
//! | file | idea |
//! |---|---|
//! | `gateway_kit` | a gateway over scripted instances, driven with `oneshot` |

pub mod gateway_kit;
