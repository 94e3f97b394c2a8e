//! Arrivals of the bus become prompts in blocks, for the miss-ratio curve (SPEC X4).
//!
//! A request with several prompts is as many rows. Its row has the tokens of all of them and of each the hashes of its full
//! blocks, so the tokens outside of full blocks, which are never reused, count with the last prompt. Rows written before
//! the blocks were a column give none. Cost: O(blocks). State: none but names.

use operators::{FlowRows, PromptRow};
use xxhash_rust::xxh3::xxh3_64;

use super::feed::{Names, Told, tier_number};

/// Appends the prompts of an arrival to `rows`. Models and tenants get numbers of `names`.
pub(super) fn take(names: &Names, row: &Told<'_>, rows: &mut FlowRows) {
    let (Some(block_tokens), Some(blocks)) = (row.block_tokens, &row.prompt_blocks) else { return };
    let (at_us, request, tier) = (row.at, xxh3_64(row.request_id.as_bytes()), tier_number(row.tier));
    let (model, tenant) = (names.number(row.model), names.number(row.tenant));
    let mut rest = row.prompt_tokens;
    let last = blocks.len().saturating_sub(1);
    for (index, hashes) in blocks.iter().enumerate() {
        let full = u32::try_from(hashes.len()).unwrap_or(u32::MAX).saturating_mul(block_tokens).min(rest);
        let prompt_tokens = if index == last { rest } else { full };
        rest -= prompt_tokens;
        let hashes = hashes.clone();
        rows.prompts.push(PromptRow { at_us, request, model, tier, tenant, prompt_tokens, block_tokens, hashes });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(prompt_tokens: u32, blocks: Option<Vec<Vec<u64>>>) -> Told<'static> {
        let block_tokens = blocks.is_some().then_some(16);
        Told { event: "arrived", prompt_tokens, block_tokens, prompt_blocks: blocks, ..Told::default() }
    }

    /// Scenario: arrivals with one prompt, with three, with one too short for a block, with fewer tokens than their blocks
    /// claim, and one written before blocks were a column.
    /// Guarantees: a row for each prompt, whose tokens add up to the request's; the operator takes every row that a sound
    /// arrival gives, and refuses the unsound one; the old arrival gives none.
    #[test]
    fn prompts_share_the_tokens_of_their_request() {
        let split = |prompt_tokens, blocks| {
            let (names, mut rows) = (Names::default(), FlowRows::default());
            take(&names, &row(prompt_tokens, blocks), &mut rows);
            let told = rows.prompts.iter().map(|row| (row.prompt_tokens, row.hashes.clone(), row.check().is_ok()));
            told.collect::<Vec<_>>()
        };
        assert_eq!(split(40, Some(vec![vec![1, 2]])), [(40, vec![1, 2], true)]);
        let three = Some(vec![vec![1, 2], vec![], vec![3]]);
        assert_eq!(split(70, three), [(32, vec![1, 2], true), (0, vec![], true), (38, vec![3], true)]);
        assert_eq!(split(9, Some(vec![vec![]])), [(9, vec![], true)]);
        assert_eq!(split(20, Some(vec![vec![1, 2], vec![3]])), [(20, vec![1, 2], true), (0, vec![3], false)]);
        assert_eq!(split(40, None), []);
    }
}
