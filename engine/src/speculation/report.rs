//! What speculation tells of itself: figures a class, and changes of state, each of which is worth a row.
//!
//! Invariant: at most one change a class and step. No state.

use crate::request::{Lane, RequestClass};

/// Whose acceptance is measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpeculationClass {
    /// Requests that named no class, by lane.
    Lane(Lane),
    /// Requests that named one.
    Named(RequestClass),
}

/// Whether a class's proposals are verified in its decode steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpeculationState {
    /// They are, as far as tokens and pages are left over.
    Active,
    /// They would lose, or nothing is known of them yet; only every `verify_interval` draws are some verified.
    Cool,
}

/// Figures of a class since the engine started, and what is believed now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassFigures {
    pub class: SpeculationClass,
    pub state: SpeculationState,
    /// Tokens drawn one by one or after verification.
    pub drawn: u64,
    /// Proposals that ran, their tokens, and how many of these were right.
    pub verifications: u64,
    pub proposed: u64,
    pub accepted: u64,
    /// Proposals that were only compared with what was drawn, their tokens, and how many of these would have been right.
    pub watched: u64,
    pub watched_tokens: u64,
    pub watched_right: u64,
    /// Tokens a unit of time with the best length of proposal, as a multiple of that without; for the most promising
    /// level of trust. 1.0 before anything is known.
    pub predicted_gain: f32,
    /// Times that the class was switched on and off.
    pub switches: u32,
}

/// A class was switched on or off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpeculationChange {
    /// As of after the change; `state` is the new one.
    pub figures: ClassFigures,
}
