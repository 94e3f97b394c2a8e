//! The HTTP side: OpenAI-compatible endpoints over [`app`], tested with `oneshot`.

pub mod instances;
