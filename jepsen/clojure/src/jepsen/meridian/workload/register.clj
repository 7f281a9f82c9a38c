(ns jepsen.meridian.workload.register
  "Linearizable registers, judged by Knossos. A register is either

      config    a setting of a topic: metadata, decided by Raft
      offset    the offset that a group has committed for a partition: in the
                group's coordinator, which moves

  Each key is a topic or a group of its own, written and read by few processes
  for a while, because Knossos takes exponential time."
  (:require [jepsen [client :as client]
                    [checker :as checker]
                    [generator :as gen]
                    [independent :as independent]
                    [random :as rand]]
            [jepsen.checker.timeline :as timeline]
            [jepsen.meridian.kafka :as kafka]
            [knossos.model :as model])
  (:import (org.apache.kafka.clients.admin Admin)))

(def setting
  "The setting that holds a register, and the value of it that stands for 0."
  ["retention.ms" 604800000])

(def offsets-topic "What groups commit offsets of." "offsets")

(defn- error [^Throwable t]
  [(keyword (.getSimpleName (class t))) (.getMessage t)])

(defprotocol Register
  (create! [this admin k] "Makes register k, with value 0.")
  (read!   [this admin k] "Its value.")
  (write!  [this admin k v] "Sets its value."))

(defrecord TopicConfig []
  Register
  (create! [_ admin k]
    (kafka/create-topic! admin (str "config-" k) 1))
  (read! [_ admin k]
    (- (parse-long (kafka/topic-config admin (str "config-" k) (first setting)))
       (second setting)))
  (write! [_ admin k v]
    (kafka/set-topic-config! admin (str "config-" k) (first setting)
                             (+ v (second setting)))))

(defrecord GroupOffset []
  Register
  (create! [_ admin _k]
    (kafka/create-topic! admin offsets-topic 1))
  (read! [_ admin k]
    (or (kafka/group-offset admin (str "offset-" k)
                            (kafka/topic-partition offsets-topic 0))
        0))
  (write! [_ admin k v]
    (kafka/commit-group-offset! admin (str "offset-" k)
                                (kafka/topic-partition offsets-topic 0) v)))

(defrecord Client [register created ^Admin admin]
  client/Client
  (open! [this test node]
    (assoc this :admin (kafka/admin test node)))

  (setup! [_ _test])

  (invoke! [_ _test {:keys [f value] :as op}]
    (let [[k v] value]
      (try
        (locking created
          (when-not (contains? @created k)
            (create! register admin k)
            (swap! created conj k)))
        (case f
          :read  (assoc op :type :ok
                        :value (independent/tuple k (read! register admin k)))
          :write (do (write! register admin k v)
                     (assoc op :type :ok)))
        (catch Exception e
          (assoc op :type (if (= :read f) :fail :info), :error (error e))))))

  (teardown! [_ _test])

  (close! [_ _test]
    (kafka/close! admin)))

(defn- r [_ _] {:type :invoke, :f :read})
(defn- w [_ _] {:type :invoke, :f :write, :value (rand/long 1000)})

(def ops-per-key
  "Few: each write whose outcome is not known doubles what Knossos must try."
  60)
(def threads-per-key 6)

(defn checker
  "Knossos on each key."
  []
  (independent/checker
    (checker/compose
      {:linearizable (checker/linearizable {:model     (model/register 0)
                                            :algorithm :linear})
       :timeline     (timeline/html)})))

(defn- workload [register opts]
  (let [threads (min threads-per-key (:concurrency opts))]
    {:client    (map->Client {:register register, :created (atom #{})})
     ; Whole groups of threads: what is left over would be refused.
     :concurrency (* threads (quot (:concurrency opts) threads))
     :checker   (checker)
     :generator (independent/concurrent-generator
                  threads (range)
                  (fn [_k]
                    (->> (gen/mix [r w])
                         (gen/limit ops-per-key)
                         (gen/process-limit 16))))}))

(defn configs "Registers in topics' settings." [opts]
  (workload (->TopicConfig) opts))

(defn offsets "Registers in groups' offsets." [opts]
  (workload (->GroupOffset) opts))
