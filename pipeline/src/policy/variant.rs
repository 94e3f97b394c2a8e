//! Which precision of the model serves a request (SPEC D1): the tenant or the tier gives an order of variants, and the first
//! of them that has a ready instance serves. The others are the fallback, in order.
//!
//! Invariants: a variant that is not in the order never serves; none is passed over that has a ready instance; the same
//! inputs give the same answer. KV of one variant means nothing to another, so a hit counts only on instances of the variant
//! that serves. Cost: variants × instances. No state.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, did_you_mean, require},
    ids::{InstanceId, Name},
    policy::{ClusterView, PrefixHits, Tier},
};

/// Name of the only variant where none is declared.
pub const DEFAULT_VARIANT: &str = "default";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariantConfig {
    /// Names of variants, best first. Empty in a file: as they are declared.
    pub order: Vec<String>,
    pub by_tier: TierOrders,
    /// Goes before the tier's.
    pub by_tenant: BTreeMap<String, Vec<String>>,
}

/// Empty in a file: `order`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierOrders {
    pub high: Vec<String>,
    pub medium: Vec<String>,
    pub low: Vec<String>,
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestClass<'a> {
    pub tenant: &'a str,
    pub tier: Tier,
}

impl VariantConfig {
    /// Variants that may serve the class, best first.
    pub fn order_for(&self, class: RequestClass<'_>) -> &[String] {
        if let Some(order) = self.by_tenant.get(class.tenant) {
            return order;
        }
        match class.tier {
            Tier::High => &self.by_tier.high,
            Tier::Medium => &self.by_tier.medium,
            Tier::Low => &self.by_tier.low,
        }
    }

    /// Variants that may serve the tenant in one tier or another; an instance of any other is none of its business.
    pub fn possible_for(&self, tenant: &str) -> Vec<String> {
        let orders = Tier::ALL.map(|tier| self.order_for(RequestClass { tenant, tier }));
        orders.concat()
    }

    /// The orders as they hold for a model with the `declared` variants: names of other models' variants play no part, and an
    /// order that names none of its own says nothing of it, so all of them may serve, as they are declared.
    pub fn of_model(&self, declared: &[String]) -> VariantConfig {
        let own = |order: &[String]| -> Vec<String> {
            let named: Vec<String> = order.iter().filter(|name| declared.contains(name)).cloned().collect();
            if named.is_empty() { declared.to_vec() } else { named }
        };
        let tiers = &self.by_tier;
        VariantConfig {
            order: own(&self.order),
            by_tier: TierOrders { high: own(&tiers.high), medium: own(&tiers.medium), low: own(&tiers.low) },
            by_tenant: self.by_tenant.iter().map(|(tenant, order)| (tenant.clone(), own(order))).collect(),
        }
    }

    /// Fills in the orders that were left empty. `declared`: names of the variants, not empty.
    pub(crate) fn resolve(&mut self, declared: Vec<String>) {
        if self.order.is_empty() {
            self.order = declared;
        }
        for order in [&mut self.by_tier.high, &mut self.by_tier.medium, &mut self.by_tier.low] {
            if order.is_empty() {
                order.clone_from(&self.order);
            }
        }
    }

    /// `tenants`: those that the keys stand for.
    pub(crate) fn validate(&self, declared: &[String], tenants: &[String]) -> Result<(), ConfigError> {
        let orders = [
            ("policy.variants.order", &self.order),
            ("policy.variants.by_tier.high", &self.by_tier.high),
            ("policy.variants.by_tier.medium", &self.by_tier.medium),
            ("policy.variants.by_tier.low", &self.by_tier.low),
        ];
        let by_tenant = self.by_tenant.values().map(|order| ("policy.variants.by_tenant", order));
        for (key, order) in orders.into_iter().chain(by_tenant) {
            for (place, name) in order.iter().enumerate() {
                let hint = did_you_mean(name, declared);
                require(declared.contains(name), key, name, format!("the name of a variant in model.variants{hint}"))?;
                require(!order[..place].contains(name), key, name, "each variant once")?;
            }
        }
        for (tenant, order) in &self.by_tenant {
            let hint = did_you_mean(tenant, tenants);
            let expected = format!("a tenant of server.keys{hint}");
            require(tenants.contains(tenant), "policy.variants.by_tenant", tenant, expected)?;
            require(!order.is_empty(), "policy.variants.by_tenant", tenant, "at least one variant for it")?;
        }
        Ok(())
    }
}

/// The variant that serves, and what would have come before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VariantChoice<'a> {
    pub variant: &'a str,
    /// Better ones without a ready instance.
    pub passed_over: &'a [String],
}

/// The first variant of `order` that a ready instance of the model, none of `excluded`, serves.
pub fn choose_variant<'a>(
    view: &ClusterView,
    model: &str,
    order: &'a [String],
    excluded: &[InstanceId],
) -> Option<VariantChoice<'a>> {
    let serves = |variant: &String| {
        view.instances.iter().any(|instance| {
            instance.is_ready
                && instance.model == model
                && instance.variant == *variant
                && !excluded.contains(&instance.instance)
        })
    };
    let place = order.iter().position(serves)?;
    Some(VariantChoice { variant: &order[place], passed_over: &order[..place] })
}

/// The longest prefix cached on an instance that serves one of `variants`; what others hold is of no use to the request.
pub fn longest_of(view: &ClusterView, hits: &PrefixHits, variants: &[String]) -> u32 {
    hits.longest_where(|id| view.instance(id).is_some_and(|instance| is_one_of(variants, &instance.variant)))
}

/// The variant is one of the order.
pub fn is_one_of(order: &[String], variant: &Name) -> bool {
    order.iter().any(|name| *variant == *name)
}

#[cfg(test)]
#[path = "variant_tests.rs"]
mod tests;
