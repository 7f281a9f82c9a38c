(ns jepsen.meridian.series-test
  (:require [clojure.string :as str]
            [clojure.test :refer [deftest is testing]]
            [jepsen [generator :as gen]
                    [history :as h]]
            [jepsen.generator.context :as context]
            [jepsen.meridian [nemesis :as nemesis]
                             [series :as series]]
            [jepsen.meridian.workload.queue :as queue]))

(def ctx
  "A moment of a test with two free clients."
  (context/context {:concurrency 2}))

(defn- take-ops
  "The first n operations of a generator whose operations succeed at once."
  [n g]
  (loop [g g, ops [], ctx ctx]
    (if (= n (count ops))
      ops
      (let [[op g] (gen/op g {} ctx)
            ctx    (assoc ctx :time (:time op))]
        (recur (gen/update g {} ctx (assoc op :type :ok)) (conj ops op) ctx)))))

(deftest faults-are-counted-once
  (is (= {"kill" 2, "power" 1}
         (series/faults
           (h/history
             (for [f [:kill :kill :start :start :cut-power :cut-power :kill :kill]]
               {:process :nemesis, :type :info, :f f, :value nil}))))))

(deftest faults-alternate-with-rests
  (let [ops (take-ops 200 (nemesis/alternately
                            {:interval 10, :lasts 5}
                            (fn [] {:type :info, :f :kill})
                            {:type :info, :f :start}))]
    (is (= (take 200 (cycle [:kill :start])) (map :f ops)))
    (let [pauses (map - (rest (map :time ops)) (map :time ops))
          mean   #(/ (reduce + %) (count %) 1e9)]
      (is (< 3.5 (mean (take-nth 2 pauses)) 6.5) "faults")
      (is (< 8 (mean (take-nth 2 (rest pauses))) 12) "rests"))))

(deftest processes-subscribe-first
  (let [ops (take-ops 20 (queue/subscribe-first
                           3 (gen/repeat {:f :txn, :value [[:poll] [:send 7 1]]})))]
    (doseq [[process ops] (group-by :process ops)]
      (is (= (cons :subscribe (repeat (dec (count ops)) :txn)) (map :f ops))
          (str "process " process)))
    (testing "keys sent to last"
      (is (= [1 2 7] (:value (first ops)))))))

(deftest tables-tell-verdicts
  (let [row   {:run 1, :seed 1, :options "classic", :faults {"kill" 2}
               :ops 51234, :ok 50000, :valid? true, :anomalies [:int-send-skip]
               :seconds {:run 330, :check 20, :all 360}}
        table (series/table [row (assoc row :run 2, :valid? false
                                        :invalid [:workload], :bad [:G1a])])]
    (is (str/includes? table "| 51 234 | 50 000 | valid | int-send-skip | 330, 20, 360 |"))
    (is (str/includes? table "**not valid**: G1a"))
    (is (str/includes? table "1 of 2 valid, 102 468 operations"))))
