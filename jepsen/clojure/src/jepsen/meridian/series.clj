(ns jepsen.meridian.series
  "Many runs of one test, one after another, in different variations; begun
  again, a series goes on where it was left.

      store/series/NAME/1.edn   what became of the first run
                        2.edn   ...

  A run that has no file is made (again)."
  (:refer-clojure :exclude [run!])
  (:require [clojure.edn :as edn]
            [clojure.java.io :as io]
            [clojure.pprint :refer [cl-format pprint]]
            [clojure.string :as str]
            [clojure.tools.logging :refer [error info]]
            [jepsen [core :as jepsen]
                    [history :as h]
                    [random :as rand]
                    [store :as store]
                    [util :as util]])
  (:import (java.io File)))

(def variations
  "In what runs of a series differ, beside their seeds. They take turns."
  [{:group-protocol "classic",  :crash-clients? false}
   {:group-protocol "consumer", :crash-clients? false}
   {:group-protocol "classic",  :crash-clients? true}
   {:group-protocol "consumer", :crash-clients? true}])

(def fault-fs
  "What starts a fault, by the name of its option."
  (sorted-map "clock"     :jump-clock
              "kill"      :kill
              "partition" :start-partition
              "pause"     :pause
              "power"     :cut-power
              "wipe"      :wipe))

(defn faults
  "How often each fault was made in a history."
  [history]
  (let [counts (->> (h/filter #(= :nemesis (:process %)) history)
                    (map :f)
                    frequencies)]
    (into (sorted-map)
          (for [[fault f] fault-fs
                :let [n (quot (get counts f 0) 2)] ; begun and done
                :when (pos? n)]
            [fault n]))))

(defn row
  "What a series keeps of a run: its completed test map, number, seed, and the
  seconds that all of it took."
  [test n seed seconds]
  (let [{:keys [history results]} test
        {:keys [stats workload]}  results]
    {:run       n
     :seed      seed
     :options   (str/join " " (cond-> [(:group-protocol test)]
                                (:crash-clients? test) (conj "crash-clients")))
     :faults    (faults history)
     :ops       (:count stats)
     :ok        (:ok-count stats)
     :sends     (:ok-sends workload)
     :valid?    (:valid? results)
     :invalid   (vec (for [[k v] results
                           :when (and (map? v) (not (true? (:valid? v))))]
                       k))
     :bad       (vec (:bad-error-types workload))
     :anomalies (vec (:error-types workload))
     :seconds   {:run   (long (util/nanos->secs (:time (last history))))
                 :check (long (reduce + (keep :seconds (filter map? (vals results)))))
                 :all   (long seconds)}
     :path      (.getPath ^File (store/path test))}))

(defn- folder ^File [series] (io/file "store" "series" series))

(defn rows
  "What became of the runs of a series, as far as they were made."
  [series]
  (->> (.listFiles (folder series))
       (filter #(re-matches #"\d+\.edn" (.getName ^File %)))
       (map (comp edn/read-string slurp))
       (sort-by :run)))

(defn table
  "Rows as a table in Markdown."
  [rows]
  (let [names (fn [ks] (if (seq ks) (str/join ", " (map name ks)) "none"))]
    (str/join
      "\n"
      (concat
        ["| run | seed | options | faults | operations | ok | verdict | anomalies | seconds: run, checks, all |"
         "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
        (for [{:keys [run seed options ops ok valid? invalid bad anomalies seconds]
               :as r} rows]
          (str "| " (str/join
                      " | "
                      [run seed options
                       (str/join ", " (for [[f n] (:faults r)] (str n " " f)))
                       (cl-format nil "~,,' :D" ops)
                       (cl-format nil "~,,' :D" ok)
                       (case valid?
                         true  "valid"
                         false (str "**not valid**: " (names (or (seq bad) invalid)))
                         (str "unknown: " (names invalid)))
                       (names anomalies)
                       (str/join ", " ((juxt :run :check :all) seconds))])
               " |"))
        [(str "\n" (count (filter (comp true? :valid?) rows)) " of " (count rows)
              " valid, " (cl-format nil "~,,' :D" (reduce + (keep :ops rows)))
              " operations")]))))

(defn- run-one!
  "Makes a run; returns its row."
  [test-fn options n]
  (let [seed  (+ n (:seed options))
        begun (System/nanoTime)
        test  (rand/with-seed seed
                (jepsen/run!
                  (test-fn (merge options
                                  (nth (cycle variations) (dec n))))))]
    (row test n seed (util/nanos->secs (- (System/nanoTime) begun)))))

(defn run!
  "Makes the runs of a series that are not made yet, and prints them all. Returns
  an exit code: 0 if all are valid, 1 if any is not, 2 otherwise. A run that
  ended without a verdict is told, and made again when the series goes on."
  [test-fn {:keys [series runs] :as options}]
  (doseq [n (range 1 (inc runs))
          :let [file (io/file (folder series) (str n ".edn"))]
          :when (not (.exists file))]
    (info "Run" n "of" runs "of series" series)
    (try
      (let [row (run-one! test-fn options n)
            new (io/file (folder series) (str n ".new"))]
        (io/make-parents new)
        (spit new (with-out-str (pprint row)))
        (.renameTo new file))
      (catch Exception e
        (error e "Run" n "ended without a verdict")))
    (println (table (rows series)))
    (flush))
  (let [made     (rows series)
        verdicts (map :valid? made)]
    (println (str "\nSeries " series ":\n\n" (table made)))
    (flush)
    (cond
      (some false? verdicts)        1
      (and (= runs (count made))
           (every? true? verdicts)) 0
      :else                         2)))
