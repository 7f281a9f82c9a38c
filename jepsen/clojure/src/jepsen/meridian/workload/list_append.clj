(ns jepsen.meridian.workload.list-append
  "Partitions as lists, judged by Elle: an append is a send, a read is the whole
  partition from its beginning to the end that its leader gives.

  Without transactions each op is one append or one read, and must be strictly
  serializable: a leader says where the log ends only when it knows that it
  still leads. With them, transactions of appends alone and of reads alone
  alternate: Kafka's transactions don't isolate reads from each other, so of
  Elle's anomalies only aborted, intermediate and circular reads count."
  (:require [jepsen [client :as client]
                    [generator :as gen]]
            [jepsen.tests.cycle.append :as append]
            [jepsen.meridian.kafka :as kafka])
  (:import (org.apache.kafka.clients.admin Admin)
           (org.apache.kafka.clients.consumer KafkaConsumer)
           (org.apache.kafka.clients.producer KafkaProducer)))

(defn k->topic [k] (str "list-" k))

(defn- error [^Throwable t]
  [(keyword (.getSimpleName (class t))) (.getMessage t)])

(defn- append! [{:keys [^Admin admin producer topics]} k v]
  (let [topic (k->topic k)]
    (when-not (contains? @topics topic)
      (kafka/create-topic! admin topic 1)
      (swap! topics conj topic))
    (kafka/send! producer (kafka/topic-partition topic 0) v)))

(defn- read! [{:keys [^KafkaConsumer consumer topics]} k]
  (let [topic (k->topic k)]
    (if-not (contains? @topics topic)
      []
      (let [tp (kafka/topic-partition topic 0)]
        (.assign consumer [tp])
        (kafka/read-partition consumer tp)))))

(defn- mop! [client [f k v]]
  (case f
    :append (do (append! client k v) [f k v])
    :r      [f k (read! client k)]))

(defrecord Client [topics ^Admin admin ^KafkaProducer producer consumer]
  client/Client
  (open! [this test node]
    (let [txn-id (when (:txn? test) (str "jepsen-" (random-uuid)))]
      (assoc this
             :admin    (kafka/admin test node)
             :producer (kafka/producer test node txn-id)
             :consumer (kafka/consumer test node {}))))

  (setup! [_ _test])

  (invoke! [this test {:keys [value] :as op}]
    (let [appends?    (some (comp #{:append} first) value)
          txn?        (and (:txn? test) appends?)
          committing? (atom false)]
      (try
        (when txn? (.beginTransaction producer))
        (let [value' (mapv (partial mop! this) value)]
          (when txn?
            (reset! committing? true)
            (.commitTransaction producer))
          (assoc op :type :ok, :value value'))
        (catch Exception e
          (let [aborted (when txn?
                          (try (.abortTransaction producer) :aborted
                               (catch RuntimeException _ :unknown)))
                nothing? (or (not appends?)
                             (= :aborted aborted)
                             (and txn? (not @committing?)))]
            (assoc op
                   :type         (if nothing? :fail :info)
                   :error        (error e)
                   :end-process? (= :unknown aborted)))))))

  (teardown! [_ _test])

  (close! [_ _test]
    (kafka/close-producer! producer)
    (kafka/close-consumer! consumer)
    (kafka/close! admin)))

(defn- appends-or-reads
  "Makes all micro-operations of an op like its first."
  [{:keys [value] :as op}]
  (let [f (ffirst value)]
    (assoc op :value (filterv (comp #{f} first) value))))

(defn workload [opts]
  (let [txn? (:txn? opts)
        test (append/test
               (merge {:key-count          6
                       :min-txn-length     1
                       :max-txn-length     (if txn? 4 1)
                       :max-writes-per-key 200}
                      (if txn?
                        {:consistency-models []
                         :anomalies          [:G1a :G1b :G1c :internal
                                              :duplicate-elements
                                              :incompatible-order]}
                        {:consistency-models [:strict-serializable]})))]
    (assoc test
           :client    (map->Client {:topics (atom #{})})
           :generator (gen/map appends-or-reads (:generator test)))))
