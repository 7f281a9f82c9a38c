(ns jepsen.meridian.check
  "Judges histories that something else wrote: `meridian-jepsen run`, the runner
  in Rust, writes them as EDN, one operation after another or in one vector,
  each a map with :index, :time, :process, :type, :f and :value."
  (:require [clojure.edn :as edn]
            [clojure.java.io :as io]
            [clojure.pprint :refer [pprint]]
            [jepsen [checker :as checker]
                    [history :as h]
                    [independent :as independent]
                    [store :as store]
                    [util :as util]]
            [jepsen.tests.cycle.append :as append]
            [jepsen.tests.kafka :as jtk]
            [jepsen.meridian.exactly-once :as exactly-once]
            [jepsen.meridian.workload.register :as register])
  (:import (java.io PushbackReader)))

(defn read-ops
  "All operations in an EDN file, as maps."
  [file]
  (with-open [reader (PushbackReader. (io/reader file))]
    (let [forms (->> (repeatedly #(edn/read {:eof ::eof, :default (fn [_ v] v)} reader))
                     (take-while (complement #{::eof}))
                     doall)]
      (if (sequential? (first forms))
        (vec (mapcat identity forms))
        (vec forms)))))

(defn- keyed
  "Makes the [k v] of a register's operations what jepsen.independent knows."
  [op]
  (update op :value (fn [[k v]] (independent/tuple k v))))

(def judges
  "Kinds of histories that can be judged: a checker, and what it wants changed
  in operations of clients."
  {:queue       {:checker (checker/compose (assoc (exactly-once/checkers)
                                                  :kafka (jtk/checker)))}
   :list-append {:checker (append/checker {:consistency-models [:strict-serializable]})}
   :register    {:checker (register/checker), :change keyed}})

(defn history
  "A Jepsen history of operations read from a file."
  [ops change]
  (h/history (mapv (fn [op]
                     (if (and change (integer? (:process op)))
                       (change op)
                       op))
                   ops)))

(defn check
  "Judges operations. Takes the kind of history, options of the checkers
  (:sub-via, :txn?, :ww-deps, :consumed-min, :gap-max) and operations; returns the checkers' results."
  [kind opts ops]
  (let [{:keys [checker change]} (judges kind)
        history   (history ops change)
        processes (filter integer? (map :process ops))
        test      (merge {:name        "meridian check"
                          :start-time  (util/local-time)
                          :nodes       []
                          :concurrency (inc (reduce max 0 processes))
                          :sub-via     #{:assign}
                          ; Plots mark the last polls.
                          :history     (h/filter (h/has-f? :poll) history)}
                         opts)]
    (checker/check-safe checker test history {})))

(defn check-file!
  "Judges a file, prints the results, and returns Jepsen's exit code: 0 valid, 1
  not, 2 unknown."
  [file {:keys [workload] :as opts}]
  (let [ops     (read-ops file)
        results (check workload opts ops)]
    (pprint results)
    (println (count ops) "operations,"
             (str (case (:valid? results)
                    true  "valid"
                    false "NOT VALID"
                    "validity unknown")))
    (case (:valid? results)
      true  0
      false 1
      2)))
