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
//! | `events` | KV events: stored, removed, cleared |
//! | `step` | the report of one step |
//! | `engine` | the step loop: schedule, execute, finish |
//! | `scheduler`, `token_budget`, `lanes` | who runs in this step (SPEC B7, B8) |
//! | `block_pool`, `block_table`, `prefix_cache`, `block_hash` | paged KV and prefix reuse (SPEC C1, C2) |
//! | `sampler` | logits to tokens |
//! | `stop` | stop tokens and strings, incremental detokenisation |
//! | `tokenizer`, `chat_template` | text to tokens and back, from the model file |
//! | `model/` | GGUF, weights, one file a model family |

pub mod chat_template;
pub mod events;
pub mod model;
pub mod request;
pub mod runner;
pub mod step;
pub mod tokenizer;

/// Microseconds since the Unix epoch (or since zero on a virtual clock). The engine only compares and subtracts it.
pub type Micros = i64;
