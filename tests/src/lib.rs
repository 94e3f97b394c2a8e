//! The cross-crate test kit: it may import everything, and nobody imports it.
//!
//! | file | idea |
//! |---|---|
//! | `shared_data` | recorded workloads and golden references, where they are present |
//! | `repository` | the source tree, for the tests that hold house rules |

pub mod repository;
pub mod shared_data;
