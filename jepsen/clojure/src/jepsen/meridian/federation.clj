(ns jepsen.meridian.federation
  "A topic of one cluster that another mirrors: links and mirrors as operators
  make them, and records of which all that consumers see can be compared.

      west  nine nodes  <== links ==>  three nodes  east

  A record is [offset timestamp key value headers]. What is in it but offset and
  timestamp follows from its number. Bytes are Latin-1 letters here, one each.
  Producer ids are not shown to consumers: not compared."
  (:require [clojure.string :as str]
            [clojure.tools.logging :refer [info]]
            [jepsen [random :as rand]
                    [util :as util]]
            [jepsen.meridian [db :as db]
                             [kafka :as kafka]
                             [topology :as topology]]
            [clj-commons.slingshot :refer [throw+]])
  (:import (java.nio.charset StandardCharsets)
           (java.time Duration)
           (java.util.concurrent TimeUnit)
           (org.apache.kafka.clients.admin NewTopic)
           (org.apache.kafka.clients.consumer ConsumerRecord
                                              KafkaConsumer)
           (org.apache.kafka.clients.producer KafkaProducer
                                              ProducerRecord
                                              RecordMetadata)
           (org.apache.kafka.common.errors TopicExistsException)
           (org.apache.kafka.common.header Header
                                           Headers)))

(def topic "mirrored")

(defn other "The other side." [side] (case side :west :east, :east :west))

(defn node
  "Some node of a side."
  [test side]
  (rand/nth (:nodes (get (topology/clusters test) side))))

(defn error
  "What the history says of an exception."
  [^Throwable t]
  [(keyword (.getSimpleName (class t))) (.getMessage t)])

;; Records

(defn content
  "[key value headers] of the record of a number: some have no key, no value, a
  header twice, a header without a value, bytes that are no UTF-8."
  [n]
  (let [pad (str/join (repeat (mod n 40) (char (+ 161 (mod n 90)))))]
    [(when-not (zero? (mod n 5)) (str "k" (mod n 17)))
     (str n " " pad)
     (case (int (mod n 4))
       0 []
       1 [["h" (str (mod n 7))]]
       2 [["h" "1"] ["h" "2"] ["e" ""]]
       3 [["n" nil] ["h" (str pad)]])]))

(defn number
  "The number of a record."
  [[_offset _timestamp _key value _headers]]
  (parse-long (first (str/split value #" "))))

(defn- text [^bytes b] (when b (String. b StandardCharsets/ISO_8859_1)))
(defn- octets ^bytes [^String s] (when s (.getBytes s StandardCharsets/ISO_8859_1)))

(defn- producer-record
  "What a producer sends for a number; some headers may be put before its own."
  [topic partition n first-headers]
  (let [[k v headers] (content n)
        record  (ProducerRecord. topic (int partition) (System/currentTimeMillis)
                                 (octets k) (octets v))
        ^Headers to (.headers record)]
    (doseq [[k v] (concat first-headers headers)]
      (.add to ^String k (octets v)))
    record))

(defn- seen
  "A consumer's record, as the history has it."
  [^ConsumerRecord r]
  [(.offset r) (.timestamp r) (text (.key r)) (text (.value r))
   (mapv (fn [^Header h] [(.key h) (text (.value h))]) (.headers r))])

;; Clients

(def ^:private bytes-codec "org.apache.kafka.common.serialization.ByteArray")

(defn producer
  "An idempotent producer to some node of a side, transactional with an id."
  ^KafkaProducer [test side transactional-id]
  (kafka/producer test (node test side) transactional-id
                  {"key.serializer"      (str bytes-codec "Serializer")
                   "value.serializer"    (str bytes-codec "Serializer")
                   "delivery.timeout.ms" 5000
                   "max.block.ms"        5000}))

(defn consumer
  "A consumer of a side. It never goes to another offset by itself."
  ^KafkaConsumer [test side isolation]
  (kafka/consumer test (node test side)
                  {:properties {"key.deserializer"   (str bytes-codec "Deserializer")
                                "value.deserializer" (str bytes-codec "Deserializer")
                                "isolation.level"    isolation
                                "auto.offset.reset"  "none"}}))

(defn send!
  "Sends records of numbers, all at once: [[partition number] ...]. Returns them
  with the offset that each was acknowledged at, nil if it was not, and the last
  error. Takes a function of a number to headers before its own."
  [^KafkaProducer p topic sends first-headers]
  (let [sent (mapv (fn [[partition n]]
                     (try (.send p (producer-record topic partition n (first-headers n)))
                          (catch Exception e e)))
                   sends)]
    (reduce (fn [result [[partition n] sent]]
              (try
                (when (instance? Exception sent) (throw sent))
                (let [^RecordMetadata m (kafka/unwrapped
                                          (.get ^java.util.concurrent.Future sent
                                                15 TimeUnit/SECONDS))]
                  (update result :sends conj
                          [partition n (if (.hasOffset m) (.offset m) :somewhere)]))
                (catch Exception e
                  (-> result
                      (update :sends conj [partition n nil])
                      (assoc :error (error e))))))
            {:sends []}
            (map vector sends sent))))

(defn read!
  "Reads a partition from an offset on, for at most some milliseconds or until
  `end` if that is given. Returns {:from, :to, :records}: from that offset up to
  where the consumer is then, these are all."
  [^KafkaConsumer c topic partition from end ms]
  (let [tp       (kafka/topic-partition topic partition)
        deadline (+ (System/nanoTime) (* 1000000 ms))]
    (.assign c [tp])
    (.seek c tp (long from))
    (loop [records []]
      (let [to (.position c tp)]
        (if (or (and end (<= end to)) (< deadline (System/nanoTime)))
          {:from from, :to to, :records records}
          (recur (into records (map seen) (.records (.poll c (Duration/ofMillis 100))
                                                    tp))))))))

(defn ends
  "Where partitions end for a consumer: a map of partitions to offsets."
  [^KafkaConsumer c topic partition-count]
  (let [tps (map #(kafka/topic-partition topic %) (range partition-count))]
    (into (sorted-map)
          (for [[^org.apache.kafka.common.TopicPartition tp end] (.endOffsets c tps)]
            [(.partition tp) end]))))

(def read-all-within "Seconds for a whole log to be read." 60)

(defn read-all!
  "All of a topic at a side: a map of partitions to what `read!` returns of each.
  Tries again for a while: this is for when all is well, or soon will be."
  [test side topic isolation]
  (util/await-fn
    (fn []
      (with-open [c (consumer test side isolation)]
        (into (sorted-map)
              (for [[partition end] (ends c topic (:key-count test))]
                (let [{:keys [to] :as read} (read! c topic partition 0 end 20000)]
                  (when (< to end)
                    (throw+ {:type ::not-read, :partition partition, :to to, :end end}))
                  [partition read])))))
    {:timeout (* 1000 read-all-within), :retry-interval 500}))

(defn there?
  "Whether a side has a topic."
  [test side topic]
  (util/await-fn
    (fn []
      (with-open [admin (kafka/admin test (node test side))]
        (contains? (kafka/await! (.names (.listTopics admin))) topic)))
    {:timeout 30000, :retry-interval 500}))

;; Operators

(defn operate!
  "Runs an operator's command at a side, until it ends well and what it says is
  as wanted, for as many seconds. Returns what it said."
  ([test side args] (operate! test side args 60 (constantly true)))
  ([test side args seconds wanted?]
   (util/await-fn
     (fn []
       (let [{:keys [exit said err]} (apply db/command! test side args)]
         (if (and (zero? exit) (wanted? said))
           said
           (throw+ {:type ::not-as-wanted, :side side, :command args, :exit exit
                    :said said, :err err}
                   nil "%s: %s %s" (pr-str args) err said))))
     {:timeout (* 1000 seconds), :retry-interval 300})))

(defn- status
  "What each partition of the mirror at a side says, nil if nobody says."
  [test side]
  (-> (db/command! test side "mirror" "status" topic)
      :said :mirrors first :partitions seq))

(defn await-status
  "Waits until all partitions of the mirror at a side are as wanted; returns what
  they say."
  [test side seconds wanted?]
  (util/await-fn
    (fn []
      (let [partitions (status test side)]
        (if (and partitions (every? wanted? partitions))
          partitions
          (throw+ {:type ::not-as-wanted, :side side, :status partitions}
                  nil "the mirror in the %s: %s" (name side) (pr-str partitions)))))
    {:timeout (* 1000 seconds), :retry-interval 300}))

(defn- create-topic! [test configs]
  (with-open [admin (kafka/admin test (node test :west))]
    (let [new (doto (NewTopic. ^String topic (int (:key-count test)) (short -1))
                (.configs configs))]
      (try (kafka/await! (.all (.createTopics admin [new])))
           (catch TopicExistsException _)))))

(defn federate!
  "Makes a topic in the west that the east mirrors, and a link in each direction:
  the second is for the way back."
  [test configs]
  (info "Linking two clusters")
  (util/await-fn #(create-topic! test configs) {:log-message "Waiting for the topic"})
  (doseq [side [:west :east]
          :let [source (other side)
                nodes  (:nodes (get (topology/clusters test) source))]]
    (operate! test side ["link" "create" (name source) "--source"
                         (str/join "," (map #(str % ":" (db/kafka-port test)) nodes))]))
  (operate! test :east ["mirror" "create" topic "--link" "west"])
  (await-status test :east 60 (comp #{"mirroring"} :state)))
