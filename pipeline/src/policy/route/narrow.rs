//! Which instances are costed in a large fleet: those that hold most of the prefix, and a sample of the least loaded.
//!
//! A fleet of at most `score_all_max` instances is compared as a whole. Above that, `sample` of the least loaded are, and the `holders_max`
//! cheapest of [`HOLDERS`] times as many with the longest prefix: the cheapest instance is nearly always one that is idle or one
//! that holds much of the prefix and is not too busy. The view names the
//! least loaded, from an index that is kept as leases come and go. Who is drawn changes with the turn, so that gateways that see the
//! same fleet do not all choose the same instance.
//!
//! Invariants: the able instance with the fewest leased tokens is always among them, so that there is room among them if there is room at
//! all; the same inputs give the same sample. Cost: O(holders + `holders_max` + least loaded), whatever the
//! fleet's size. No state.

use std::cmp::Reverse;

use super::{RouteConfig, RouteRequest, cost::cost, draw};
use crate::policy::{ClusterView, InstanceView};

/// Holders that are costed for each one that is compared.
const HOLDERS: usize = 4;

/// The instances to cost, in the order of their ids; `None`: all that are able.
pub(super) fn narrow<'a>(
    view: &'a ClusterView,
    (request, config): (&RouteRequest<'_>, &RouteConfig),
    is_able: impl Fn(&InstanceView) -> bool,
) -> Option<Vec<&'a InstanceView>> {
    if view.instances.len() <= config.score_all_max {
        return None;
    }
    let named = view.least_loaded.iter().filter_map(|id| view.instance(*id));
    let mut idle: Vec<&InstanceView> = named.filter(|instance| is_able(instance)).collect();
    // None of those named may serve it: it is for the others to say.
    let least = *idle.iter().min_by_key(|instance| (instance.leased_tokens, instance.instance))?;
    let drawn = |instance: &InstanceView| draw(request.turn, instance.instance);
    idle.sort_by_cached_key(|instance| drawn(instance));
    idle.truncate(config.sample);
    let mut seek = view.seek();
    let holders = request.hits.iter().filter_map(|hit| Some((hit.tokens.total(), seek.find(hit.instance)?)));
    let mut holders: Vec<(u32, &InstanceView)> =
        holders.filter(|(tokens, instance)| *tokens > 0 && is_able(instance)).collect();
    let rank = |(tokens, instance): &(u32, &InstanceView)| (Reverse(*tokens), drawn(instance));
    if holders.len() > HOLDERS * config.holders_max {
        holders.select_nth_unstable_by_key(HOLDERS * config.holders_max, rank);
        holders.truncate(HOLDERS * config.holders_max);
    }
    let seconds = |instance: &InstanceView| cost(instance, view.mode, request, config).0.compared_seconds;
    let mut costed: Vec<(f64, &InstanceView)> =
        holders.into_iter().map(|(_, instance)| (seconds(instance), instance)).collect();
    if costed.len() > config.holders_max {
        let dearer = |a: &(f64, &InstanceView), b: &(f64, &InstanceView)| {
            a.0.total_cmp(&b.0).then_with(|| a.1.instance.cmp(&b.1.instance))
        };
        costed.select_nth_unstable_by(config.holders_max, dearer);
        costed.truncate(config.holders_max);
    }
    let mut chosen: Vec<&InstanceView> = costed.into_iter().map(|(_, instance)| instance).chain(idle).collect();
    chosen.push(least);
    chosen.sort_by_key(|instance| instance.instance);
    chosen.dedup_by_key(|instance| instance.instance);
    Some(chosen)
}
