//! The engine: sequences in, tokens out. It is sans-IO: it reads no clock, opens no socket and starts no async runtime.
//! Time enters as [`Micros`], randomness as a seed in the request.
//!
//! One thread owns an [`Engine`](engine::Engine) and calls `step(now)`; a step is
//! `schedule` → `runner` executes the batch → `finish` (sample, hash full blocks, free). What happened comes back as a
//! [`StepReport`](step::StepReport): tokens for clients, KV events and figures for the bus. Nothing is sent from here.
//!
//! Must not know: HTTP, gRPC, Arrow, timely, the environment, the wall clock (DESIGN §1).
//!
//! | file | idea |
//! |---|---|
//! | `request` | what a caller asks for, and why it may be refused |
//! | `runner` | the [`ModelRunner`](runner::ModelRunner) seam: CPU today, simulated for tests, CUDA later |
//! | `events` | KV events: stored, hit, removed, cleared |
//! | `step` | the report of one step |
//! | `config`, `validate` | settings and requests, checked before anything is kept |
//! | `engine`, `finish` | the step loop: schedule, execute, finish |
//! | `sequence`, `roster`, `running` | one sequence; all of them; those that run, in order of service |
//! | `scheduler`, `token_budget`, `step_pace`, `resting`, `lanes`, `preemption`, `swap` | who runs in this step, who gives way and how (SPEC B7, B8) |
//! | `block_pool`, `lru`, `block_table`, `prefix_cache`, `block_hash` | paged KV and prefix reuse (SPEC C1, C2) |
//! | `sampler`, `token_history` | logits to tokens |
//! | `speculation/` | guessed tokens, verified several a step |
//! | `stop`, `detokenizer` | stop strings, incremental detokenisation |
//! | `grammar`, `masks` | structured output: which tokens may come next |
//! | `tool_calls/` | generated text to tool calls, and the grammar that makes it so |
//! | `likelihood` | what a model thinks of a text, and how far models agree |
//! | `tokenizer`, `chat_template` | text to tokens and back, from the model file |
//! | `model/` | GGUF files and Hugging Face folders, weights, the forward pass, one file a model family |

pub mod block_hash;
pub mod block_pool;
pub mod block_table;
pub mod chat_template;
pub mod config;
pub mod detokenizer;
pub mod engine;
pub mod events;
mod finish;
pub mod grammar;
mod lanes;
pub mod likelihood;
mod lru;
mod masks;
pub mod model;
pub mod preemption;
pub mod prefix_cache;
pub mod request;
mod resting;
mod roster;
pub mod runner;
mod running;
pub mod sampler;
mod scheduler;
mod sequence;
pub mod speculation;
pub mod step;
mod step_pace;
pub mod stop;
mod swap;
pub mod token_budget;
pub mod token_history;
pub mod tokenizer;
pub mod tool_calls;
mod validate;

/// Microseconds since the Unix epoch (or since zero on a virtual clock). The engine only compares and subtracts it.
pub type Micros = i64;
