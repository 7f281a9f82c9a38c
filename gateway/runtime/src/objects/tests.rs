use super::*;

/// A folder that is gone after the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("meridian-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder can be made");
        Self(path)
    }

    fn config(&self) -> ObjectStoreConfig {
        config(&format!("file://{}", self.0.display()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _best_effort = std::fs::remove_dir_all(&self.0);
    }
}

fn config(url: &str) -> ObjectStoreConfig {
    ObjectStoreConfig {
        url: url.to_owned(),
        endpoint: None,
        region: None,
        access_key_id: None,
        secret_access_key: Some(Secret("hush".to_owned())),
        ca: None,
        bytes_per_second: 1 << 20,
    }
}

fn point(generation: u32, step: u64) -> LogPoint {
    LogPoint::new(Generation::new(generation), Step::new(step))
}

#[tokio::test]
async fn what_is_put_is_got_listed_and_deleted() -> Result<(), ObjectError> {
    let scratch = Scratch::new("objects");
    let cluster = ClusterId::from_entropy(5);
    let objects = Arc::new(Objects::open(&scratch.config(), &cluster)?);
    let other = Arc::new(Objects::open(&scratch.config(), &ClusterId::from_entropy(6))?);
    let (one, two) = (PartitionId::new(1), PartitionId::new(2));
    assert_eq!(objects.partitions().await?, []);
    objects.claim(1, false).await?;
    let pieces = vec![Bytes::from_static(b"he"), Bytes::from_static(b"llo")];
    objects.put(one, point(3, 4), pieces.clone()).await?;
    objects.put(two, point(3, 5), pieces).await?;

    let object = Object::of(point(3, 4), b"hello");
    assert_eq!(objects.get(one, object).await?, "hello");
    assert_eq!(objects.list(one).await?, [Listed { point: point(3, 4), size_bytes: 5 }]);
    assert_eq!(objects.partitions().await?, [one, two]);
    assert_eq!(other.partitions().await?, [], "clusters that share a store do not see each other");

    let damaged = Object { crc: !object.crc, ..object };
    assert!(matches!(objects.get(one, damaged).await, Err(ObjectError::Damaged { .. })));
    objects.delete(one, point(3, 4)).await?;
    objects.delete(one, point(3, 4)).await?;
    assert!(matches!(objects.get(one, object).await, Err(ObjectError::Store { .. })));
    assert_eq!(objects.partitions().await?, [two]);
    Ok(())
}

#[tokio::test]
async fn one_cluster_puts_and_deletes_and_another_of_its_id_does_not() -> Result<(), ObjectError> {
    let scratch = Scratch::new("objects-owner");
    let open = || Objects::open(&scratch.config(), &ClusterId::from_entropy(5)).map(Arc::new);
    let (own, other) = (open()?, open()?);
    let partition = PartitionId::new(1);
    let pieces = vec![Bytes::from_static(b"hello")];
    let unclaimed = own.put(partition, point(3, 4), pieces.clone()).await;
    assert!(matches!(unclaimed, Err(ObjectError::Unclaimed { .. })));
    own.claim(7, false).await?;
    own.put(partition, point(3, 4), pieces.clone()).await?;

    for has_store in [false, true] {
        let refused = other.claim(8, has_store).await.unwrap_err().to_string();
        assert!(refused.contains("belongs to another cluster of this id"), "{refused}");
    }
    assert!(other.put(partition, point(9, 9), pieces).await.is_err());
    assert!(other.delete(partition, point(3, 4)).await.is_err());
    assert_eq!(own.list(partition).await?, [Listed { point: point(3, 4), size_bytes: 5 }]);
    assert_eq!(own.partitions().await?, [partition], "the owner is no partition");

    open()?.claim(7, true).await?;
    let elsewhere = Scratch::new("objects-elsewhere");
    let moved = Objects::open(&elsewhere.config(), &ClusterId::from_entropy(5))?;
    let refused = moved.claim(7, true).await;
    assert!(matches!(refused, Err(ObjectError::OtherStore { .. })), "it has its objects elsewhere");
    Ok(())
}

#[test]
fn names_are_read_as_they_are_written() {
    let at = point(7, 0x1_0000_0000);
    assert_eq!(name_of(at), "00000007-0000000100000000");
    assert_eq!(parse_point(&name_of(at)), Some(at));
    for stray in ["", "7-1", "00000007-00000001000000000", "0000000G-0000000100000000", "x"] {
        assert_eq!(parse_point(stray), None, "{stray}");
    }
}

#[test]
fn what_cannot_be_used_is_refused_and_secrets_stay_hidden() {
    let cluster = ClusterId::from_entropy(5);
    for url in ["s3://", "gs://bucket", "file:///no/such/folder"] {
        let error = Objects::open(&config(url), &cluster).map(drop).unwrap_err().to_string();
        assert!(error.starts_with("object_store.url"), "{error}");
    }
    assert!(Objects::open(&config("s3://bucket/a/b"), &cluster).is_ok());
    assert!(!format!("{:?}", config("s3://bucket")).contains("hush"));
}
