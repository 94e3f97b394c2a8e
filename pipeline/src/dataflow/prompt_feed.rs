//! Arrivals of the bus become prompts in blocks, for the miss-ratio curve (SPEC X4).
//!
//! A request with several prompts is as many rows. Its row has the tokens of all of them and of each the hashes of its full
//! blocks, so the tokens outside of full blocks, which are never reused, count with the last prompt. Rows written before
//! the blocks were a column give none. Cost: O(rows); only arrivals are decoded whole. State: none but names.

use arrow::{
    array::{AsArray, BooleanArray},
    compute::filter_record_batch,
};
use operators::{FlowRows, PromptRow};
use queries::Topic;
use xxhash_rust::xxh3::xxh3_64;

use super::feed::{Names, tier_number};
use crate::{
    bus::{Published, RowsError, rows_of},
    rows::RequestRow,
};

/// Appends the prompts of the batch's arrivals to `rows`. Models and tenants get numbers of `names`.
///
/// # Errors
/// The batch does not have its topic's columns.
pub(super) fn take(names: &Names, published: &Published, rows: &mut FlowRows) -> Result<(), RowsError> {
    let events = published.batch.column_by_name("event").and_then(|column| column.as_string_opt::<i32>());
    let (Topic::Requests, Some(events)) = (published.topic, events) else { return Ok(()) };
    let arrived: BooleanArray = events.iter().map(|event| Some(event == Some("arrived"))).collect();
    let Ok(arrivals) = filter_record_batch(&published.batch, &arrived) else { return Ok(()) };
    for row in rows_of::<RequestRow>(&arrivals)? {
        prompts(names, row, rows);
    }
    Ok(())
}

fn prompts(names: &Names, row: RequestRow, rows: &mut FlowRows) {
    let (Some(block_tokens), Some(blocks)) = (row.block_tokens, row.prompt_blocks) else { return };
    let (at_us, request, tier) = (row.at, xxh3_64(row.request_id.as_bytes()), tier_number(&row.tier));
    let (model, tenant) = (names.number(&row.model), names.number(&row.tenant));
    let mut rest = row.prompt_tokens;
    let last = blocks.len().saturating_sub(1);
    for (index, hashes) in blocks.into_iter().enumerate() {
        let full = u32::try_from(hashes.len()).unwrap_or(u32::MAX).saturating_mul(block_tokens).min(rest);
        let prompt_tokens = if index == last { rest } else { full };
        rest -= prompt_tokens;
        rows.prompts.push(PromptRow { at_us, request, model, tier, tenant, prompt_tokens, block_tokens, hashes });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(prompt_tokens: u32, blocks: Option<Vec<Vec<u64>>>) -> RequestRow {
        let block_tokens = blocks.is_some().then_some(16);
        RequestRow {
            event: "arrived".into(),
            prompt_tokens,
            block_tokens,
            prompt_blocks: blocks,
            ..RequestRow::default()
        }
    }

    /// Scenario: arrivals with one prompt, with three, with one too short for a block, with fewer tokens than their blocks
    /// claim, and one written before blocks were a column.
    /// Guarantees: a row for each prompt, whose tokens add up to the request's; the operator takes every row that a sound
    /// arrival gives, and refuses the unsound one; the old arrival gives none.
    #[test]
    fn prompts_share_the_tokens_of_their_request() {
        let split = |prompt_tokens, blocks| {
            let (names, mut rows) = (Names::default(), FlowRows::default());
            prompts(&names, row(prompt_tokens, blocks), &mut rows);
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
