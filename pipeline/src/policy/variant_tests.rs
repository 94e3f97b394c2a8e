//! Tests of the choice of a variant: orders by class, fallback, and equality with a twin that tries every variant.

use proptest::prelude::*;

use super::*;
use crate::policy::{InstanceView, RouteRejection, RouteRequest, ViewMode, route, test_instance, test_policy};

const NAMES: [&str; 3] = ["f32", "int8", "q4"];

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

fn instance(id: u32, variant: &str, is_ready: bool) -> InstanceView {
    InstanceView {
        variant: variant.into(),
        is_ready,
        leased_tokens: u64::from(id) * 100,
        leased_requests: 1,
        ..test_instance(id)
    }
}

fn view(instances: Vec<InstanceView>) -> ClusterView {
    ClusterView { mode: ViewMode::Exact, as_of: Some(0), instances, least_loaded: Vec::new() }
}

fn config() -> VariantConfig {
    let mut config = test_policy().variants;
    config.order = names(&["int8", "f32"]);
    config.by_tier = TierOrders { high: names(&["f32", "int8"]), medium: vec![], low: names(&["q4"]) };
    config.by_tenant = BTreeMap::from([("core".to_string(), names(&["f32"]))]);
    config.resolve(names(&NAMES));
    config
}

/// Scenario: a tier with an order, one without, a tenant with its own in any tier.
/// Guarantees: the tenant's goes before the tier's, and the tier's before the common one (SPEC D1).
#[test]
fn the_class_gives_the_order() {
    let config = config();
    let order = |tenant, tier| config.order_for(RequestClass { tenant, tier }).join(" ");
    assert_eq!(order("any", Tier::High), "f32 int8");
    assert_eq!(order("any", Tier::Medium), "int8 f32");
    assert_eq!(order("any", Tier::Low), "q4");
    assert_eq!([Tier::High, Tier::Low].map(|tier| order("core", tier)), ["f32", "f32"]);
    assert_eq!(config.possible_for("core"), names(&["f32"; 3]));
    assert!(NAMES.iter().all(|name| config.possible_for("any").iter().any(|possible| possible == name)));
}

/// Scenario: no variant declared at all.
/// Guarantees: everybody is served by the one that there is.
#[test]
fn without_variants_there_is_one() {
    let config = test_policy().variants;
    assert_eq!(config.order_for(RequestClass { tenant: "local", tier: Tier::Low }), names(&[DEFAULT_VARIANT]));
}

/// Scenario: names with a wrong letter, a variant twice, a tenant without a key, a tenant without a variant.
/// Guarantees: each is refused with its key, its value and the nearest name.
#[test]
fn wrong_names_are_named() {
    let declared = names(&NAMES);
    let tenants = names(&["core", "batch"]);
    let refusal = |change: fn(&mut VariantConfig)| {
        let mut wrong = config();
        change(&mut wrong);
        wrong.validate(&declared, &tenants).expect_err("a wrong name").to_string()
    };
    assert!(config().validate(&declared, &tenants).is_ok());
    let lines = [
        refusal(|config| config.order = names(&["f23"])),
        refusal(|config| config.by_tier.low = names(&["q4", "f32", "q4"])),
        refusal(|config| drop(config.by_tenant.insert("batch".into(), names(&["int9"])))),
        refusal(|config| drop(config.by_tenant.insert("bacth".into(), names(&["int8"])))),
        refusal(|config| drop(config.by_tenant.insert("batch".into(), vec![]))),
    ];
    expect_test::expect![[r#"
        policy.variants.order = f23: expected the name of a variant in model.variants; did you mean `f32`?
        policy.variants.by_tier.low = q4: expected each variant once
        policy.variants.by_tenant = int9: expected the name of a variant in model.variants; did you mean `int8`?
        policy.variants.by_tenant = bacth: expected a tenant of server.keys; did you mean `batch`?
        policy.variants.by_tenant = batch: expected at least one variant for it"#]]
    .assert_eq(&lines.join("\n"));
}

/// Scenario: the best variant's only instance dies, then the next one's, while each holds the whole prefix.
/// Guarantees: the next in order serves, with the reason; what is not in the order never does; its hits do not count.
#[test]
fn fallback_is_in_order_and_says_why() {
    let order = names(&["f32", "int8"]);
    let mut fleet = view(vec![instance(0, "q4", true), instance(1, "int8", true), instance(2, "f32", true)]);
    let hits = PrefixHits::near([(InstanceId(0), 384), (InstanceId(1), 16)]);
    assert_eq!(longest_of(&fleet, &hits, &order), 16);
    let said = |fleet: &ClusterView| {
        let request = RouteRequest {
            model: "m",
            variants: &order,
            tier: Tier::High,
            prompt_tokens: 400,
            max_tokens: 100,
            hits: &hits,
            turn: 0,
            now: 0,
            excluded: &[],
            spared: &[],
        };
        route(fleet, &request, &test_policy().route).map(|p| (p.variant, p.candidates.len(), p.reason))
    };
    let (variant, candidates, reason) = said(&fleet).unwrap();
    assert_eq!((variant.as_str(), candidates), ("f32", 1));
    assert!(!reason.contains("variant"), "{reason}");
    fleet.instances[2].is_ready = false;
    let (variant, _, reason) = said(&fleet).unwrap();
    assert_eq!(variant, "int8");
    assert!(reason.ends_with("; variant int8, since f32 has no ready instance"), "{reason}");
    fleet.instances[1].is_ready = false;
    assert_eq!(said(&fleet), Err(RouteRejection::NoInstance));
}

prop_compose! {
    fn any_instance()(id in 0u32..8, variant in 0usize..3, is_ready: bool, own in prop::bool::weighted(0.9)) -> InstanceView {
        let mut made = instance(id, NAMES[variant], is_ready);
        if !own { made.model = "other".into(); }
        made
    }
}

proptest! {
    /// Scenario: any fleet, any order of variants, any instance excluded.
    /// Guarantees: the choice is that of a twin which tries variant after variant; and routing with an order places as
    /// routing over that variant's instances alone.
    #[test]
    fn choice_equals_brute_force(
        mut instances in prop::collection::vec(any_instance(), 0..8),
        order in prop::sample::subsequence(NAMES.to_vec(), 1..=3).prop_shuffle(), excluded in 0u32..10, turn in 0u64..9,
        hits in prop::collection::vec((0u32..8, 0u32..500), 0..6),
    ) {
        instances.sort_by_key(|i| i.instance);
        instances.dedup_by_key(|i| i.instance);
        let (fleet, order, excluded) = (view(instances), names(&order), [InstanceId(excluded)]);
        let usable = |variant: &str| -> Vec<InstanceView> {
            fleet.instances.iter().filter(|i| i.variant == variant).cloned().collect()
        };
        let mut expected = None;
        for (place, name) in order.iter().enumerate() {
            let able = usable(name).iter().any(|i| i.is_ready && i.model == "m" && i.instance != excluded[0]);
            if able && expected.is_none() {
                expected = Some(VariantChoice { variant: name, passed_over: &order[..place] });
            }
        }
        prop_assert_eq!(choose_variant(&fleet, "m", &order, &excluded), expected);

        let hits = PrefixHits::near(hits.into_iter().map(|(id, tokens)| (InstanceId(id), tokens)));
        let request = RouteRequest {
            model: "m", variants: &order, tier: Tier::Low, prompt_tokens: 400, max_tokens: 100, hits: &hits, turn, now: 0,
            excluded: &excluded,
            spared: &[],
        };
        let alone = view(expected.map(|choice| usable(choice.variant)).unwrap_or_default());
        let twin = route(&alone, &RouteRequest { variants: &[], ..request.clone() }, &test_policy().route);
        let found = route(&fleet, &request, &test_policy().route);
        prop_assert_eq!(found.as_ref().map(|p| (p.instance, p.candidates.clone())),
            twin.as_ref().map(|p| (p.instance, p.candidates.clone())));
        if let (Ok(placement), Some(choice)) = (found, expected) {
            prop_assert_eq!(placement.variant, choice.variant);
        }
    }
}
