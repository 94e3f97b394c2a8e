//! One sequence while it lives: its request, its tokens, its KV and its text.
//!
//! Invariants: KV exists for the first `computed` tokens and nothing else; `planned` tokens run in the current step; a
//! sequence that waits has no blocks. Every known token but the last sampled one has its KV before the next is drawn.
//!
//! Cost: O(1) a token, plus O(block size) for each block that becomes full. Memory: 4 bytes a generated token, 12 bytes
//! a block, the history of `token_history`, the state of `grammar`; bounded by the context.

use crate::{
    Micros,
    block_hash::next_block_hash,
    block_pool::{BlockContent, BlockPool},
    block_table::BlockTable,
    events::BlockHash,
    grammar::{GrammarFault, GrammarState, TokenMask},
    prefix_cache::{PrefixCache, PrefixQuery},
    request::{FinishReason, GenerateRequest, Lane, SubmitRejection},
    sampler::{Draw, Sampled},
    speculation::draft_state::DraftState,
    step::{Finish, SequenceOutput},
    stop::{TextState, TextStream, TokenBytes},
    swap::Swapped,
    token_history::TokenHistory,
};

/// Order of submission within an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Arrival(pub u64);

/// When a sequence first ran, and what it found in the cache then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FirstRun {
    pub at: Micros,
    pub cached_tokens: usize,
}

/// See the file's header. What each step's walks read lies together at the front, in two cache lines.
#[repr(C)]
pub(crate) struct Sequence {
    pub computed: usize,
    pub planned: usize,
    pub generated: Vec<u32>,
    /// Length of the request's prompt.
    prompt_len: usize,
    pub table: BlockTable,
    pub request: GenerateRequest,
    pub arrival: Arrival,
    pub submitted: Micros,
    /// Hashes of full blocks so far; of the prompt from the start, of the output as it grows. Empty if nothing is
    /// reused.
    pub hashes: Vec<BlockHash>,
    pub first_run: Option<FirstRun>,
    pub preemptions: u32,
    /// KV in L2, while it waits after giving way by swap.
    pub swapped: Option<Swapped>,
    pub cancelled: bool,
    /// Start of the step in which it drew last.
    pub drew_at: Micros,
    pub grammar: Option<GrammarState>,
    pub draft: DraftState,
    history: TokenHistory,
    text: TextStream,
}

impl Sequence {
    /// A sequence that waits. `hashes`: of the prompt's full blocks.
    pub fn new(
        request: GenerateRequest,
        arrival: Arrival,
        submitted: Micros,
        hashes: Vec<BlockHash>,
    ) -> Result<Self, SubmitRejection> {
        let drawn = &request.prompt[request.prompt.len().saturating_sub(request.sampling_offset as usize)..];
        let replay = |grammar| GrammarState::new(grammar, drawn);
        let grammar = request
            .grammar
            .as_ref()
            .map(replay)
            .transpose()
            .map_err(|fault| SubmitRejection::GrammarReplay { drawn: drawn.len(), fault })?;
        let history = TokenHistory::new(&request.sampling, &request.prompt, request.sampling_offset as usize);
        let text = TextStream::new(&request.stop.stop_strings);
        Ok(Self {
            computed: 0,
            planned: 0,
            generated: Vec::new(),
            prompt_len: request.prompt.len(),
            table: BlockTable::default(),
            request,
            grammar,
            arrival,
            submitted,
            hashes,
            first_run: None,
            preemptions: 0,
            swapped: None,
            cancelled: false,
            drew_at: submitted,
            draft: DraftState::default(),
            history,
            text,
        })
    }

    pub fn lane(&self) -> Lane {
        self.request.lane
    }

    /// Tokens known: prompt and output.
    pub fn len(&self) -> usize {
        self.prompt_len + self.generated.len()
    }

    /// Most tokens that will ever need KV: all but the last that may be generated.
    pub fn most_positions(&self) -> usize {
        self.prompt_len + self.request.stop.max_tokens as usize - 1
    }

    /// Most tokens that can be guessed: the one drawn behind them is the last that may be generated.
    pub fn most_proposals(&self) -> usize {
        (self.request.stop.max_tokens as usize).saturating_sub(self.generated.len() + 1)
    }

    /// Known tokens without KV.
    pub fn remaining(&self) -> usize {
        self.len() - self.computed
    }

    /// Microseconds that each further token may take, if all that were asked for are to come a while before it is dropped: a
    /// sixth of the time it had, or half of what is left. Steps differ, and an answer has a way to go: what is whole at
    /// the last moment is late where it is wanted.
    pub fn needed_pace(&self, now: Micros) -> Option<Micros> {
        let drop_at = self.request.drop_at?;
        let left = drop_at.saturating_sub(now);
        let early = (drop_at.saturating_sub(self.submitted) / 6).min(left / 2).max(0);
        Some((left - early) / (self.most_proposals() as Micros + 1))
    }

    /// Known tokens without KV in L1 or L2.
    pub fn without_kv(&self) -> usize {
        self.remaining() - self.swapped.as_ref().map_or(0, |swapped| swapped.tokens)
    }

    /// Only the last sampled token lacks its KV.
    pub fn is_decoding(&self) -> bool {
        !self.generated.is_empty() && self.remaining() == 1
    }

    /// The planned tokens reach the end of what is known, so logits are wanted.
    pub fn draws_in_this_step(&self) -> bool {
        self.planned > 0 && self.computed + self.planned == self.len()
    }

    /// Appends the planned tokens to `tokens`.
    pub fn planned_tokens(&self, tokens: &mut Vec<u32>) {
        let prompt = &self.request.prompt;
        let (start, end) = (self.computed, self.computed + self.planned);
        tokens.extend_from_slice(&prompt[start.min(prompt.len())..end.min(prompt.len())]);
        let behind = |position: usize| position.saturating_sub(prompt.len());
        tokens.extend_from_slice(&self.generated[behind(start)..behind(end)]);
    }

    pub fn prefix_query(&self) -> PrefixQuery<'_> {
        PrefixQuery {
            hashes: &self.hashes,
            prompt: &self.request.prompt,
            generated: &self.generated,
            salt: self.request.cache_salt,
        }
    }

    pub fn draw(&self) -> Draw<'_> {
        Draw {
            params: &self.request.sampling,
            history: &self.history,
            index: self.request.sampling_offset as usize + self.generated.len(),
        }
    }

    /// The tokens that may be drawn now; `None`: all.
    pub fn take_mask(&mut self) -> Result<Option<TokenMask>, GrammarFault> {
        self.grammar.as_mut().map(|grammar| grammar.take_mask(&self.request.stop.stop_tokens)).transpose()
    }

    /// Moves the grammar on by a drawn token. A stop token ends the sequence and is none of the grammar's business.
    pub fn follow_grammar(&mut self, token: u32) -> Result<(), GrammarFault> {
        match &mut self.grammar {
            Some(grammar) if !self.request.stop.stop_tokens.contains(&token) => grammar.commit(token),
            _ => Ok(()),
        }
    }

    /// The planned tokens have their KV now; full blocks get their names.
    pub fn mark_computed(&mut self, pool: &mut BlockPool, cache: &PrefixCache) {
        self.computed += std::mem::take(&mut self.planned);
        let limit = cache.reusable_blocks(self.computed, pool.block_size());
        if self.table.published() >= limit || !self.table.can_publish() {
            return;
        }
        let mut buffer = vec![0; pool.block_size()];
        while self.table.can_publish() && self.table.published() < limit {
            let index = self.table.published();
            let (salt, parent) = (self.request.cache_salt, index.checked_sub(1).map(|before| self.hashes[before]));
            let tokens = self.prefix_query().block_tokens(index, &mut buffer);
            if index == self.hashes.len() {
                self.hashes.push(next_block_hash(parent, tokens, salt));
            }
            let content = BlockContent { hash: self.hashes[index], parent, tokens, salt };
            self.table.publish_next(pool, &content);
        }
    }

    /// Takes a drawn token, which the grammar took before, and says whether, and why, the sequence ends with it. Text and token go to `output`.
    pub fn accept(
        &mut self,
        sampled: Sampled,
        vocabulary: &dyn TokenBytes,
        output: &mut SequenceOutput,
    ) -> Option<FinishReason> {
        let token = sampled.token;
        self.generated.push(token);
        self.history.record(token);
        output.tokens.push(token);
        output.logprobs.extend(sampled.logprob);
        let ended = self.grammar.as_ref().is_some_and(GrammarState::ended_by_token);
        if ended || self.request.stop.stop_tokens.contains(&token) {
            self.text.finish(&mut output.text);
            return Some(FinishReason::Stop);
        }
        if self.text.push(vocabulary.token_bytes(token), &mut output.text) == TextState::Stopped {
            return Some(FinishReason::Stop);
        }
        if self.grammar.as_ref().is_some_and(GrammarState::is_complete) {
            self.text.finish(&mut output.text);
            return Some(FinishReason::Stop);
        }
        if self.generated.len() < self.request.stop.max_tokens as usize {
            return None;
        }
        match self.text.finish(&mut output.text) {
            TextState::Stopped => Some(FinishReason::Stop),
            TextState::Open => Some(FinishReason::Length),
        }
    }

    /// An output for this sequence with nothing in it yet.
    pub fn empty_output(&self) -> SequenceOutput {
        SequenceOutput {
            sequence: self.request.id,
            tokens: Vec::new(),
            text: String::new(),
            logprobs: Vec::new(),
            finish: None,
        }
    }

    /// Releases text that was held back, for an end that no token brought about.
    pub fn flush_text(&mut self, text: &mut String) {
        self.text.finish(text);
    }

    /// The accounts at the end.
    pub fn finish(&self, reason: FinishReason, error: Option<String>) -> Finish {
        let count = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
        Finish {
            reason,
            prompt_tokens: count(self.request.prompt.len()),
            completion_tokens: count(self.generated.len()),
            cached_tokens: self.first_run.map_or(0, |run| count(run.cached_tokens)),
            submitted: self.submitted,
            first_scheduled: self.first_run.map(|run| run.at),
            preemptions: self.preemptions,
            error,
        }
    }
}
