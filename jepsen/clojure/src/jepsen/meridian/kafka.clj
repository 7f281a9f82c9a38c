(ns jepsen.meridian.kafka
  "Apache Kafka's Java clients, as this suite wants them: short time-outs, so
  that a fault shows, and no retries beyond them."
  (:require [clojure.string :as str]
            [jepsen.meridian [db :as db]
                             [topology :as topology]]
            [jepsen.util :as util])
  (:import (java.time Duration)
           (java.util Collection Map Properties)
           (java.util.concurrent ExecutionException TimeUnit)
           (org.apache.kafka.clients.admin Admin
                                           AlterConfigOp
                                           AlterConfigOp$OpType
                                           Config
                                           ConfigEntry
                                           NewTopic)
           (org.apache.kafka.clients.consumer ConsumerRecord
                                              ConsumerRebalanceListener
                                              KafkaConsumer
                                              OffsetAndMetadata)
           (org.apache.kafka.clients.producer KafkaProducer
                                              ProducerRecord
                                              RecordMetadata)
           (org.apache.kafka.common KafkaFuture
                                    TopicPartition)
           (org.apache.kafka.common.config ConfigResource
                                           ConfigResource$Type)
           (org.apache.kafka.common.errors TopicExistsException
                                           WakeupException)))

(def group
  "The consumer group that all consumers of a test are in."
  "jepsen")

(defn bootstrap
  "Addresses of all nodes of a cluster; a client's own node first."
  [test node]
  (->> (cons node (remove #{node} (:nodes (topology/cluster-of test node))))
       (map (fn [n] (str n ":" (db/kafka-port test))))
       (str/join ",")))

(defn- properties ^Properties [m]
  (let [p (Properties.)]
    (doseq [[k v] m :when (some? v)]
      (.setProperty p k (str v)))
    p))

(defn- common [test node]
  {"bootstrap.servers"                     (bootstrap test node)
   "request.timeout.ms"                    3000
   "socket.connection.setup.timeout.ms"     500
   "socket.connection.setup.timeout.max.ms" 1000
   "reconnect.backoff.ms"                    50
   "reconnect.backoff.max.ms"               500
   "retry.backoff.ms"                       100
   "retry.backoff.max.ms"                   500
   "metadata.max.age.ms"                  10000})

(def ^:private long-codec "org.apache.kafka.common.serialization.Long")

(defn admin
  ^Admin [test node]
  (Admin/create (properties (assoc (common test node)
                                   "default.api.timeout.ms" 5000))))

(defn producer
  "A producer of longs: idempotent, and transactional with a transactional id.
  Throws if the transactional id cannot be taken over. May be given a map of
  further settings."
  (^KafkaProducer [test node transactional-id]
   (producer test node transactional-id {}))
  (^KafkaProducer [test node transactional-id settings]
   (let [p (KafkaProducer.
             (properties
               (merge (common test node)
                      {"key.serializer"         (str long-codec "Serializer")
                       "value.serializer"       (str long-codec "Serializer")
                       "acks"                   "all"
                       "enable.idempotence"     "true"
                       "linger.ms"              0
                       "delivery.timeout.ms"    10000
                       "max.block.ms"           10000
                       "transaction.timeout.ms" (when transactional-id 5000)
                       "transactional.id"       transactional-id}
                      settings)))]
     (when transactional-id
       (try (.initTransactions p)
            (catch Throwable t
              (.close p (Duration/ofMillis 0))
              (throw t))))
     p)))

(defn consumer
  "A consumer of longs that begins at the beginning and commits only when told
  to. :group-id may be nil for one that is in no group. :properties is a map of
  further settings."
  ^KafkaConsumer [test node {:keys [group-id properties]}]
  (KafkaConsumer.
    (jepsen.meridian.kafka/properties
      (merge (common test node)
             {"key.deserializer"         (str long-codec "Deserializer")
              "value.deserializer"       (str long-codec "Deserializer")
              "auto.offset.reset"        "earliest"
              "enable.auto.commit"       "false"
              "allow.auto.create.topics" "false"
              "isolation.level"          (:isolation-level test)
              "default.api.timeout.ms"   10000
              "fetch.max.wait.ms"        500
              ; A client that waits for a transaction does not poll: the group
              ; goes on without it, not after it.
              "max.poll.interval.ms"     6000
              "group.id"                 group-id}
             (when group-id
               (if (= "consumer" (:group-protocol test))
                 {"group.protocol" "consumer"}
                 {"heartbeat.interval.ms" 1000
                  "session.timeout.ms"    6000
                  "partition.assignment.strategy"
                  "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"}))
             properties))))

(defn close-consumer!
  "Closes a consumer without waiting for anything: close may hang on a group
  whose coordinator is away, so we wake it up."
  [^KafkaConsumer c]
  (let [waker (future (Thread/sleep 1000) (.wakeup c))]
    (try (.close c (Duration/ofMillis 0))
         (catch WakeupException _)
         (finally (future-cancel waker)))))

(defn close-producer!
  "Closes a producer without waiting for what it has not sent."
  [^KafkaProducer p]
  (.close p (Duration/ofMillis 0)))

(defn close!
  "Closes an admin client."
  [^java.lang.AutoCloseable c]
  (.close c))

(defmacro unwrapped
  "Evaluates body; what futures throw is thrown without its wrapping."
  [& body]
  `(try ~@body
        (catch ExecutionException e#
          (throw (or (.getCause e#) e#)))))

(defn await!
  "Value of a KafkaFuture, at most 10 s later."
  [^KafkaFuture f]
  (unwrapped (.get f 10 TimeUnit/SECONDS)))

;; Topics and partitions

(defn topic-partition
  ^TopicPartition [topic partition]
  (TopicPartition. topic (int partition)))

(defn create-topic!
  "Creates a topic unless it is there."
  [^Admin admin topic partition-count]
  (try
    (-> (.createTopics admin [(NewTopic. ^String topic (int partition-count)
                                         (short -1))])
        .values
        (.get topic)
        await!)
    :created
    (catch TopicExistsException _ :exists)))

(defn leaders
  "Node ids of the leaders of topics' partitions: {topic {partition id}}."
  [^Admin admin topics]
  (update-vals (into {} (await! (.allTopicNames (.describeTopics admin ^Collection topics))))
               (fn [^org.apache.kafka.clients.admin.TopicDescription d]
                 (into (sorted-map)
                       (for [^org.apache.kafka.common.TopicPartitionInfo p (.partitions d)]
                         [(.partition p) (some-> (.leader p) .id)])))))

;; Records

(defn send!
  "Sends a long; returns its offset when it is acknowledged, nil if the
  acknowledgement has none."
  [^KafkaProducer p ^TopicPartition tp value]
  (let [record (ProducerRecord. (.topic tp) (int (.partition tp)) nil value)
        ^RecordMetadata res (unwrapped (.get (.send p record) 15 TimeUnit/SECONDS))]
    (when (.hasOffset res)
      (.offset res))))

(defn poll!
  "Polls for at most as many milliseconds. Returns a map of topic-partitions to
  vectors of [offset value]."
  [^KafkaConsumer c ms]
  (let [records (.poll c (Duration/ofMillis ms))]
    (into {}
          (for [^TopicPartition tp (.partitions records)]
            [tp (mapv (fn [^ConsumerRecord r] [(.offset r) (.value r)])
                      (.records records tp))]))))

(defn rebalance-listener
  "A listener that appends {:event, :partitions} to the vector in an atom."
  [log]
  (let [append! (fn [event partitions]
                  (swap! log conj {:event event, :partitions (vec partitions)}))]
    (reify ConsumerRebalanceListener
      (onPartitionsAssigned [_ ps] (append! :assigned ps))
      (onPartitionsRevoked  [_ ps] (append! :revoked ps))
      (onPartitionsLost     [_ ps] (append! :lost ps)))))

(defn read-partition
  "All values of a partition, from the beginning to the end that its leader
  gives when we ask. The consumer must be assigned to just this partition."
  [^KafkaConsumer c ^TopicPartition tp]
  (let [end (long (get (.endOffsets c [tp]) tp))
        deadline (+ (System/nanoTime) 10000000000)]
    (.seekToBeginning c [tp])
    (loop [values []]
      (cond
        (<= end (.position c tp)) values

        (< deadline (System/nanoTime))
        (throw (org.apache.kafka.common.errors.TimeoutException.
                 (str tp " could not be read up to " end)))

        :else
        (recur (into values (map second) (get (poll! c 200) tp)))))))

;; Registers

(defn topic-config
  "Value of a topic's setting, as a string."
  [^Admin admin topic setting]
  (let [resource (ConfigResource. ConfigResource$Type/TOPIC topic)
        ^Config config (get (await! (.all (.describeConfigs admin [resource])))
                            resource)]
    (.value (.get config setting))))

(defn set-topic-config!
  [^Admin admin topic setting value]
  (let [resource (ConfigResource. ConfigResource$Type/TOPIC topic)
        op (AlterConfigOp. (ConfigEntry. setting (str value))
                           AlterConfigOp$OpType/SET)]
    (await! (.all (.incrementalAlterConfigs admin {resource [op]})))))

(defn group-offset
  "Offset that a group has committed for a partition, nil if none."
  [^Admin admin group ^TopicPartition tp]
  (let [offsets (await! (.partitionsToOffsetAndMetadata
                          (.listConsumerGroupOffsets admin ^String group)))]
    (some-> ^OffsetAndMetadata (get offsets tp) .offset)))

(defn commit-group-offset!
  [^Admin admin group ^TopicPartition tp offset]
  (await! (.all (.alterConsumerGroupOffsets
                  admin group {tp (OffsetAndMetadata. (long offset))}))))
