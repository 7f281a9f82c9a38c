//! Operations from EDN.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Body, Charge, Epoch, Key, Kind, Micro, Notes, Offset, Op, Polled, Process};
use crate::edn::Edn;

/// Reads a line; says what is wrong with it.
pub(super) fn op(line: &str) -> Result<Op, String> {
    let map = Edn::parse(line).map_err(|error| error.to_string())?;
    let get = |key: &str| map.get(key).ok_or_else(|| format!("no :{key}"));
    let name = get("type")?.name().unwrap_or_default();
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name).ok_or("an unknown :type")?;
    let process = match get("process")? {
        Edn::Int(number) => Process::Client(*number),
        _ => Process::Nemesis,
    };
    let time_ns = get("time")?.int().and_then(|it| u64::try_from(it).ok()).ok_or("no :time")?;
    let from_beginning = map.get("seek-to-beginning?") == Some(&Edn::Bool(true));
    let f = get("f")?.name().unwrap_or_default();
    let value = map.get("value").unwrap_or(&Edn::Nil);
    let body = match process {
        Process::Client(_) => body(f, value, from_beginning),
        Process::Nemesis => fault(f, value),
    };
    Ok(Op {
        time: Duration::from_nanos(time_ns),
        kind,
        process,
        body: body.ok_or_else(|| format!("an unknown :value of :{f}"))?,
        notes: notes(&map)
            .ok_or("unknown :gaps, :read-to, :epochs, :stable, :position or :charge")?,
    })
}

fn notes(map: &Edn) -> Option<Notes> {
    let error = map.get("error").map(|error| match error {
        Edn::Text(text) => text.clone(),
        other => other.to_string(),
    });
    let items = |key| map.get(key).and_then(Edn::items).unwrap_or_default().iter();
    let pair = |value: &Edn| match value.items()? {
        [key, number] => Some((key.int()?, number.int()?)),
        _ => None,
    };
    let three = |three: &Edn| match three.items()? {
        [first, second, third] => Some((first.int()?, second.int()?, third.int()?)),
        _ => None,
    };
    let run = |run: &Edn| match run.items()? {
        [key, from, to, epoch] => Some((key.int()?, from.int()?, to.int()?, epoch.int()?)),
        _ => None,
    };
    Some(Notes {
        error,
        epochs: items("epochs").map(run).collect::<Option<_>>()?,
        gaps: items("gaps").map(three).collect::<Option<_>>()?,
        read_to: items("read-to").map(pair).collect::<Option<_>>()?,
        stable: items("stable").map(pair).collect::<Option<_>>()?,
        position: match map.get("position") {
            None => None,
            Some(position) => Some(pair(position)?),
        },
        charge: match map.get("charge") {
            None => None,
            Some(charge) => {
                let (node, size_bytes, throttle_ms) = three(charge)?;
                Some(Charge { node, size_bytes, throttle_ms })
            }
        },
    })
}

fn fault(f: &str, value: &Edn) -> Option<Body> {
    let items = value.items()?;
    let Some(Edn::Text(detail)) = items.get(1) else { return None };
    let begins = items.first()?.name()? == "begins";
    Some(Body::Fault { name: f.to_owned(), begins, detail: detail.clone() })
}

fn body(f: &str, value: &Edn, from_beginning: bool) -> Option<Body> {
    let micros = || value.items()?.iter().map(micro).collect::<Option<Vec<_>>>();
    let pair = || match value.items()? {
        [first, second] => Some((first, second)),
        _ => None,
    };
    let maybe = |value: &Edn| match value {
        Edn::Nil => Some(None),
        value => value.int().map(Some),
    };
    let maybe_offsets = || match value {
        Edn::Nil => Some(None),
        value => offsets(value).map(Some),
    };
    Some(match f {
        "send" => Body::Send(micros()?),
        "poll" => Body::Poll(micros()?),
        "txn" => Body::Txn(micros()?),
        "assign" => Body::Assign { keys: keys(value)?, from_beginning },
        "subscribe" => Body::Subscribe,
        "assigned" => {
            let (generation, of) = pair()?;
            Body::Assigned { generation: generation.int()?, keys: keys(of)? }
        }
        "commit" => {
            let (generation, of) = pair()?;
            Body::Commit { generation: generation.int()?, offsets: offsets(of)? }
        }
        "committed" => Body::Committed(maybe_offsets()?),
        "ends" => Body::Ends(maybe_offsets()?),
        "stable" | "lineage" => told(f, value)?,
        "write" => {
            let (key, value) = pair()?;
            Body::Write { key: key.int()?, value: value.int()? }
        }
        "read" => {
            let (key, value) = pair()?;
            Body::Read { key: key.int()?, value: maybe(value)? }
        }
        "create-topic" => {
            let (key, id) = pair()?;
            let id = match id {
                Edn::Text(id) => Some(id.clone()),
                _ => None,
            };
            Body::CreateTopic { key: key.int()?, id }
        }
        "delete-topic" => Body::DeleteTopic { key: value.int()? },
        "topics" => {
            let (node, of) = pair()?;
            let keys = if of == &Edn::Nil { None } else { Some(keys(of)?) };
            Body::Topics { node: node.int()?, keys }
        }
        "zombie" | "replay" => {
            let [key, offset, value] = value.items()? else { return None };
            let (key, offset, value) = (key.int()?, maybe(offset)?, value.int()?);
            match f {
                "zombie" => Body::Zombie { key, offset, value },
                _ => Body::Replay { key, offset, value },
            }
        }
        "deposed" => deposed(value)?,
        "demand" => demand(value)?,
        _ => return None,
    })
}

fn told(f: &str, value: &Edn) -> Option<Body> {
    if f == "lineage" {
        let [key, epochs] = value.items()? else { return None };
        let pairs = |of: &[Edn]| of.iter().map(both).collect::<Option<Vec<(Epoch, Offset)>>>();
        let epochs = if epochs == &Edn::Nil { None } else { Some(pairs(epochs.items()?)?) };
        return Some(Body::Lineage { key: key.int()?, epochs });
    }
    if value == &Edn::Nil {
        return Some(Body::Stable(None));
    }
    let of = |(key, pair): &(Edn, Edn)| Some((key.int()?, both(pair)?));
    Some(Body::Stable(Some(value.entries()?.iter().map(of).collect::<Option<_>>()?)))
}

fn both(value: &Edn) -> Option<(i64, i64)> {
    match value.items()? {
        [first, second] => Some((first.int()?, second.int()?)),
        _ => None,
    }
}

fn deposed(value: &Edn) -> Option<Body> {
    let [key, node, goes_on] = value.items()? else { return None };
    Some(Body::Deposed { key: key.int()?, node: node.int()?, goes_on: truth(goes_on) })
}

fn demand(value: &Edn) -> Option<Body> {
    let [Edn::Text(what), met] = value.items()? else { return None };
    Some(Body::Demand { what: what.clone(), met: truth(met) })
}

/// `None` if it is not known.
fn truth(value: &Edn) -> Option<bool> {
    match value {
        Edn::Bool(truth) => Some(*truth),
        _ => None,
    }
}

fn keys(value: &Edn) -> Option<Vec<Key>> {
    value.items()?.iter().map(Edn::int).collect()
}

fn offsets(value: &Edn) -> Option<BTreeMap<Key, Offset>> {
    value.entries()?.iter().map(|(key, offset)| Some((key.int()?, offset.int()?))).collect()
}

fn micro(value: &Edn) -> Option<Micro> {
    let items = value.items()?;
    match (items.first()?.name()?, items.get(1), items.get(2)) {
        ("send", Some(key), Some(sent)) => {
            let (offset, value) = match sent.items() {
                Some([offset, value]) => (offset.int(), value.int()?),
                _ => (None, sent.int()?),
            };
            Some(Micro::Send { key: key.int()?, offset, value })
        }
        ("poll", None, None) => Some(Micro::Poll(None)),
        ("poll", Some(polled), None) => polled_of(polled).map(|it| Micro::Poll(Some(it))),
        _ => None,
    }
}

fn polled_of(value: &Edn) -> Option<Polled> {
    let record = |record: &Edn| match record.items()? {
        [offset, value] => Some((offset.int()?, value.int()?)),
        _ => None,
    };
    let of = |(key, records): &(Edn, Edn)| {
        Some((key.int()?, records.items()?.iter().map(record).collect::<Option<Vec<_>>>()?))
    };
    value.entries()?.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_read_as_it_was_written() {
        let polled: Polled = [(3, vec![(0, 7), (1, 8)]), (4, Vec::new())].into();
        let offsets: BTreeMap<Key, Offset> = [(3, 9)].into();
        let send = |offset| Micro::Send { key: 3, offset, value: 7 };
        let bodies = [
            Body::Send(vec![send(None), send(Some(5))]),
            Body::Poll(vec![Micro::Poll(None)]),
            Body::Txn(vec![send(None), Micro::Poll(Some(polled))]),
            Body::Assign { keys: vec![1, 2], from_beginning: true },
            Body::Subscribe,
            Body::Assigned { generation: 2, keys: vec![1] },
            Body::Commit { generation: 2, offsets: offsets.clone() },
            Body::Committed(None),
            Body::Committed(Some(offsets.clone())),
            Body::Ends(Some(offsets)),
            Body::Stable(None),
            Body::Stable(Some([(3, (8, 9))].into())),
            Body::Lineage { key: 3, epochs: None },
            Body::Lineage { key: 3, epochs: Some(vec![(0, 4), (2, 9)]) },
            Body::Write { key: 1, value: 2 },
            Body::Read { key: 1, value: None },
            Body::CreateTopic { key: 1, id: None },
            Body::CreateTopic { key: 1, id: Some("a".to_owned()) },
            Body::DeleteTopic { key: 1 },
            Body::Topics { node: 1, keys: None },
            Body::Topics { node: 1, keys: Some(vec![1, 2]) },
            Body::Zombie { key: 1, offset: Some(3), value: 2 },
            Body::Deposed { key: 1, node: 4, goes_on: Some(true) },
            Body::Deposed { key: 1, node: 4, goes_on: None },
            Body::Demand { what: "goes on".to_owned(), met: None },
            Body::Demand { what: "goes on".to_owned(), met: Some(false) },
            Body::Replay { key: 1, offset: None, value: 2 },
        ];
        let whole = |process, body| Op {
            time: Duration::from_nanos(77),
            kind: Kind::Info,
            process,
            body,
            notes: Notes {
                error: Some("why \"so\"".to_owned()),
                gaps: vec![(1, 2, 3)],
                read_to: vec![(8, 9)],
                epochs: vec![(1, 2, 3, 4)],
                stable: vec![(4, 5)],
                position: Some((6, 7)),
                charge: Some(Charge { node: 1, size_bytes: 2, throttle_ms: 3 }),
            },
        };
        let mut all: Vec<Op> = bodies.map(|body| whole(Process::Client(4), body)).into();
        let fault = Body::Fault { name: "kill".to_owned(), begins: true, detail: "n1".to_owned() };
        all.push(whole(Process::Nemesis, fault));
        for (index, written) in all.into_iter().enumerate() {
            assert_eq!(op(&written.to_edn(index).to_string()), Ok(written));
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        assert!(op("{:type :ok}").unwrap_err().contains(":process"));
        let line = "{:index 0, :time 1, :type :ok, :process 1, :f :send, :value [[:what]]}";
        assert!(op(line).unwrap_err().contains(":send"));
    }
}
