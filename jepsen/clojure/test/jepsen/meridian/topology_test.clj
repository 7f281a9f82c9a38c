(ns jepsen.meridian.topology-test
  (:require [clojure.string :as str]
            [clojure.test :refer [deftest is testing]]
            [jepsen.meridian [db :as db]
                             [kafka :as kafka]
                             [local :as local]
                             [nemesis :as nemesis]
                             [topology :as topology]]))

(def nine {:nodes (local/nodes :netns 0 3 3), :dcs 3, :kafka-port 9092
           :worker-threads 1})

(deftest places-test
  (is (= {:node "10.77.2.1", :id 4, :dc "B", :rack "B1"}
         (topology/place nine "10.77.2.1")))
  (is (= ["A" "B" "C"] (keys (topology/by-dc nine))))
  (is (= "mirror-3-dc" (topology/geometry nine)))
  (is (thrown? IllegalArgumentException
               (topology/geometry (update nine :nodes pop)))))

(deftest failures-test
  (let [failures (topology/failures nine)]
    (testing "3 datacenters, and 18 times a datacenter and a rack elsewhere"
      (is (= 21 (count failures)))
      (is (= {3 3, 4 18} (frequencies (map (comp count distinct val) failures)))))
    (is (= ["10.77.1.1" "10.77.1.2" "10.77.1.3" "10.77.3.2"]
           (failures "DC A + rack C2"))))
  (is (= 3 (count (topology/failures {:nodes ["a" "b" "c"], :dcs 3})))))

(def two
  (topology/pair (update nine :nodes into (local/nodes :netns 3 3 1))))

(deftest pair-test
  (is (= [:east :west] (keys (topology/clusters two))))
  (is (= ["one-per-dc" "mirror-3-dc"] (map topology/geometry (vals (topology/clusters two)))))
  (is (= {:node "10.77.5.1", :id 2, :dc "B", :rack "B1"} (topology/place two "10.77.5.1")))
  (is (= {:node "10.77.2.1", :id 4, :dc "B", :rack "B1"} (topology/place two "10.77.2.1")))
  (is (= "10.77.6.1:9092,10.77.4.1:9092,10.77.5.1:9092" (kafka/bootstrap two "10.77.6.1")))
  (is (thrown? IllegalArgumentException (topology/pair {:nodes ["a" "b" "c"], :dcs 3})))
  (testing "a cut of the link keeps each cluster whole"
    (let [grudge (nemesis/grudge nil two :link)]
      (is (= 12 (count grudge)))
      (is (= #{"10.77.4.1" "10.77.5.1" "10.77.6.1"} (grudge "10.77.1.1")))
      (is (= 9 (count (grudge "10.77.4.1"))))))
  (testing "other partitions are of one cluster"
    (is (contains? #{3 9} (count (nemesis/grudge nil two :failure))))))

(deftest configuration-test
  (let [toml (db/configuration nine "10.77.2.1" "the-id" identity)]
    (is (str/includes? toml "id = 4\ndatacenter = \"B\"\nrack = \"B1\""))
    (is (str/includes? toml "peer = \"10.77.2.1:9192\""))
    (is (= 9 (count (re-seq #"\[\[cluster.nodes\]\]" toml)))))
  (testing "a cluster of one has no peers"
    (let [toml (db/configuration (assoc nine :nodes ["n1"] :dcs 1) "n1" "i" identity)]
      (is (not (re-find #"listen.peer|\[tls\]" toml)))))
  (testing "a cluster knows nothing of the other one"
    (let [toml (db/configuration two "10.77.5.1" "i" identity)]
      (is (= 3 (count (re-seq #"\[\[cluster.nodes\]\]" toml))))
      (is (not (str/includes? toml "10.77.1."))))))

(deftest grudge-test
  (testing "the deaf hear nobody outside; all others hear everybody"
    (is (= {"a" #{"c" "d"}, "b" #{"c" "d"}}
           (nemesis/one-way ["a" "b" "c" "d"] ["a" "b"]))))
  (testing "a failure's nodes hear each other and nobody else"
    (let [grudge (nemesis/grudge nil nine :failure)
          cut    (set (keys (filter (fn [[_ drops]] (<= 5 (count drops))) grudge)))]
      (is (= 9 (count grudge)))
      (is (contains? (set (map set (vals (topology/failures nine)))) cut)))))
