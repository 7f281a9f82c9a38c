//! A cluster of one has no copies to spare: when its slot is asked at all.

use super::*;
use crate::log::testing::Bench;

#[tokio::test]
async fn a_partition_is_looked_through_when_there_is_a_cause_and_not_otherwise() {
    let mut bench = Bench::new().await;
    bench.write(0..3, 0).await;
    bench.set_away(true);
    assert_eq!(bench.log.free_surplus().await, Ok(Look::Needless), "no leader came before");
    bench.set_away(false);
    bench.take_over().await;
    bench.set_away(true);
    let looked = bench.log.free_surplus().await;
    assert_eq!(looked, Err(NotNow::NotWell(Slot::new(0))));
    bench.set_away(false);
    assert_eq!(bench.log.free_surplus().await, Ok(Look::Clean), "a new leader asks");
    bench.write(0..3, 1).await;
    assert_eq!(bench.log.free_surplus().await, Ok(Look::Needless), "no put was hedged");
    bench.take_over().await;
    assert_eq!(bench.log.free_surplus().await, Ok(Look::Clean));
    let counts = bench.log.logs().expect("the node runs").copies_counts();
    assert_eq!(counts, CopiesCounts::default());
}

#[tokio::test]
async fn a_look_begins_where_the_last_one_found_none() {
    let bench = Bench::new().await;
    let causes = bench.log.causes_of_surplus().expect("it leads");
    let clean_to = bench.log.with(None, |it| it.leader().mark()).map(|mark| mark.point);
    let clean = Looked { causes, clean_to, is_unproven: false };
    let from = |causes: Causes, looked: Looked| bench.log.look_from(&causes, Some(&looked));
    assert_eq!(from(causes, clean), None);
    assert_eq!(from(Causes { made_bytes: 7, ..causes }, clean), Some(clean_to));
    assert_eq!(from(causes, Looked { is_unproven: true, ..clean }), Some(clean_to));
    let moved = Causes { config_version: ConfigVersion::new(77), ..causes };
    assert_eq!(from(moved, clean), Some(None), "a refill may have left some anywhere");
    let returned = Causes { return_count: causes.return_count + 1, ..causes };
    assert_eq!(from(returned, clean), Some(None), "so may a node that was away");
}
