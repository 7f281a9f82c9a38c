use super::*;

/// 160 bytes: 80 for records, 10 for small requests.
fn memory() -> Arc<Memory> {
    Memory::new(160)
}

fn used(memory: &Memory, kind: Kind) -> usize {
    memory.usage()[kind as usize].1
}

#[tokio::test(start_paused = true)]
async fn one_kind_does_not_take_what_another_needs() {
    let memory = memory();
    let (one, other) = (memory.holder(), memory.holder());
    let mut records = one.charge(Kind::Records);
    records.take(80).await;
    let mut small = other.charge(Kind::Small);
    small.take(10).await;
    assert!(!one.charge(Kind::Small).try_take(1));
    drop((records, small));
    assert_eq!(Kind::ALL.map(|kind| used(&memory, kind)), [0; 4]);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_ends_gives_all_back() {
    let memory = memory();
    let holder = memory.holder();
    let mut charge = holder.charge(Kind::Answers);
    charge.set(1000);
    assert_eq!(used(&memory, Kind::Answers), 1000);
    charge.set(10);
    assert_eq!(used(&memory, Kind::Answers), 10);
    drop((charge, holder));
    assert_eq!(used(&memory, Kind::Answers), 0);
    assert!(lock(&memory.holders).is_empty());
}

/// Ends the connection that gives way first, and gives its number.
async fn first_to_give_way(holders: &mut Vec<(usize, Arc<Holder>, Charge)>) -> usize {
    let number = tokio::select! {
        () = holders[0].1.gives_way() => 0,
        () = holders[1].1.gives_way() => 1,
        () = holders[2].1.gives_way() => 2,
    };
    holders.remove(number).0
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_served_at_the_cost_of_who_is_late() {
    let memory = memory();
    let mut holders = Vec::new();
    // The largest is not late, for it is the node's turn.
    for (number, (size_bytes, turn)) in
        [(30, None), (15, Some(Turn::Send)), (35, Some(Turn::Send))].into_iter().enumerate()
    {
        let holder = memory.holder();
        let mut charge = holder.charge(Kind::Records);
        charge.take(size_bytes).await;
        turn.into_iter().for_each(|turn| holder.await_client(turn));
        holders.push((number, holder, charge));
    }
    // The other goes on sending.
    let busy = Arc::clone(&holders[2].1);
    let sending = tokio::spawn(async move {
        loop {
            busy.on_progress(Turn::Send, 1 << 20);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let needy = memory.holder();
    let mut needed = needy.charge(Kind::Records);
    let begun = tokio::time::Instant::now();
    let ((), gone) = tokio::join!(needed.take(10), first_to_give_way(&mut holders));
    assert_eq!(gone, 1);
    assert!(begun.elapsed() < Duration::from_secs(1));
    sending.abort();
}

#[tokio::test(start_paused = true)]
async fn who_is_slow_goes_on_while_nobody_needs_its_memory() {
    let memory = memory();
    let slow = memory.holder();
    let mut charge = slow.charge(Kind::Records);
    charge.take(80).await;
    slow.await_client(Turn::Send);
    let gone = tokio::time::timeout(Duration::from_secs(3600), slow.gives_way()).await;
    assert!(gone.is_err());
}
