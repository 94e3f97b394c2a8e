//! Integration tests of the engine, in one binary: one module a subject. They never time anything.

// Everything here is a test or a helper of one; the lint only knows functions marked as tests.
#![allow(clippy::unwrap_used)]

mod batching;
mod block_hash;
mod chunking;
mod constrained;
mod cpu_runner;
mod data;
mod fairness;
mod gguf_fuzz;
mod golden;
mod golden_gemma;
mod hugging_face;
mod lanes;
mod late;
mod lifecycle;
mod likelihood;
mod limits;
mod pool_twin;
mod prefix_reuse;
mod queueing;
mod sampler_twin;
mod schema_checker;
mod schemas;
mod simulated_judge;
mod speculation;
mod speculation_model;
mod stop_twin;
mod support;
mod swap;
mod tokenizer;
mod tool_calls;
mod utilisation;
