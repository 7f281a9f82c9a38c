(ns jepsen.meridian.nemesis
  "Faults, and when to make them. Each kind of fault goes at its own pace, so
  that they meet in all combinations: it lasts for about --fault-seconds, and the
  rest after it for --nemesis-interval.

      kill       kill -9 of one node, a datacenter, a datacenter and a rack,
                 the metadata leader, all
      pause      SIGSTOP of the same sets
      partition  one node, random halves, a ring, one way, a datacenter, a
                 datacenter and a rack, the metadata leader apart
      link       the way between two clusters is cut, or flaps
      clock      wall clocks jump, of single processes
      wipe       a node loses its disk
      power      one node, a datacenter and a rack, or all lose what they have
                 not synced (needs root)
      packet     delay and loss (needs tc's netem)

  With two clusters each fault hits nodes of one of them; besides, kills and
  pauses hit a node that pulls some of a mirror over the link."
  (:require [clojure.set :as set]
            [jepsen [control :as c]
                    [db :as db]
                    [generator :as gen]
                    [nemesis :as n]
                    [random :as rand]
                    [util :as util]]
            [jepsen.nemesis.combined :as combined]
            [jepsen.meridian [db :as mdb]
                             [kafka :as kafka]
                             [topology :as topology]]))

(def faults
  "All faults."
  #{:kill :pause :partition :link :clock :wipe :power :packet})

(def named
  "Names of mixes of faults."
  {:none     []
   :standard [:kill :pause :partition]
   :nasty    [:kill :pause :partition :clock :wipe :power]})

;; Which nodes

(defn- some-cluster
  "The test as if it had one of its clusters only."
  [test]
  (rand/nth (vec (vals (topology/clusters test)))))

(defn- link-owner
  "The node that leads some partition of the mirror, and pulls it."
  [{:keys [mirror] :as test}]
  (let [east (:east (topology/clusters test))]
    (with-open [admin (kafka/admin test (rand/nth (:nodes east)))]
      (let [owners (set (vals (get (kafka/leaders admin [mirror]) mirror)))]
        (some->> (topology/places east)
                 (filter (comp owners :id))
                 seq rand/nth :node vector)))))

(defn- node-sets
  "What may be hit together. A map of names to functions of a test to nodes."
  [db]
  {:one      (fn [test] [(rand/nth (:nodes test))])
   :leader   (fn [test] (db/primaries db test))
   :failure  (fn [test]
               (let [failures (topology/failures test)]
                 (if (empty? failures)
                   (:nodes test)
                   (val (rand/nth (vec (sort-by key failures)))))))
   :all      (fn [test] (:nodes test))})

(defn- targeted
  "The nodes that a target is now."
  [db test target]
  (vec (if (= :owner target)
         (link-owner test)
         ((get (node-sets db) target) (some-cluster test)))))

(def node-targets
  "What kills and pauses may hit, by default: a failure is the loss of a
  datacenter, or of a datacenter and a rack of another."
  #{:one :leader :failure :all})

;; When

(defrecord Alternately [due on? start stop rest lasts]
  gen/Generator
  (op [this test ctx]
    (let [op (gen/fill-in-op (if on? stop (start)) ctx)]
      (if (= :pending op)
        [:pending this]
        (let [time (max due (:time ctx))]
          [(assoc op :time time)
           (assoc this
                  :on? (not on?)
                  :due (+ time (util/secs->nanos
                                 (rand/double (* 2 (if on? rest lasts))))))]))))

  (update [this _test _ctx _event] this))

(defn alternately
  "A generator that starts a fault and ends it, over and over. `start` is a
  function that returns an op, `stop` is one. A generator is asked for its next
  operation all the time, and everything waits for its answer: which nodes to hit
  is not asked of the cluster here, but by the nemesis."
  [{:keys [interval lasts]} start stop]
  (->Alternately 0 false start stop interval lasts))

;; Kills and pauses

(defn- db-nemesis
  "Resolves what to hit to nodes."
  [db]
  (let [nemesis (combined/db-nemesis db)]
    (reify
      n/Reflection
      (fs [_] (n/fs nemesis))

      n/Nemesis
      (setup! [this _test] this)

      (invoke! [_ test {:keys [f value] :as op}]
        (let [nodes (if (#{:start :resume} f)
                      (:nodes test)
                      (targeted db test value))]
          (n/invoke! nemesis test (assoc op :value nodes))))

      (teardown! [_ _test]))))

(defn- db-package
  "Kills and pauses, each at its own pace."
  [{:keys [db faults targets] :as opts}]
  (let [targets (vec (sort targets))
        hit     (fn [f] (fn [] {:type :info, :f f, :value (rand/nth targets)}))
        start   {:type :info, :f :start,  :value :all}
        resume  {:type :info, :f :resume, :value :all}
        kill?   (faults :kill)
        pause?  (faults :pause)]
    (when (or kill? pause?)
      {:nemesis (db-nemesis db)
       :generator (gen/any (when kill?  (alternately opts (hit :kill) start))
                           (when pause? (alternately opts (hit :pause) resume)))
       :final-generator (cond-> []
                          pause? (conj resume)
                          kill?  (conj start))
       :perf #{{:name "kill",  :start #{:kill},  :stop #{:start},  :color "#E9A4A0"}
               {:name "pause", :start #{:pause}, :stop #{:resume}, :color "#A0B1E9"}}})))

;; Partitions

(defn one-way
  "A grudge by which some nodes do not hear the others, but are heard."
  [nodes deaf]
  (let [others (set/difference (set nodes) (set deaf))]
    (into {} (for [node deaf] [node others]))))

(defn- apart
  "A grudge that cuts some nodes off from the others, both ways."
  [nodes component]
  (n/complete-grudge [component (remove (set component) nodes)]))

(def cuts
  "Kinds of partitions."
  [:one :halves :ring :one-way :failure :leader])

(def link-cuts
  "What happens to the way between two clusters."
  [:link :flap])

(defn between-clusters
  "A grudge of each cluster against the other; clients reach both."
  [test]
  (n/complete-grudge (map :nodes (vals (topology/clusters test)))))

(defn grudge
  "Who drops whose packets, for a kind of partition."
  [db test cut]
  (let [some-nodes (node-sets db)
        whole      test
        {:keys [nodes] :as test} (some-cluster test)]
    (case cut
      :link    (between-clusters whole)
      :halves  (n/complete-grudge (n/bisect (rand/shuffle nodes)))
      :ring    (n/majorities-ring nodes)
      :one-way (one-way nodes ((:failure some-nodes) test))
      (apart nodes ((get some-nodes cut) test)))))

(def flap-ms
  "For how long a way that flaps is up or down, at most."
  800)

(defn- flap!
  "Cuts the way between two clusters and mends it, over and over."
  [partitioner test]
  (dotimes [_ (+ 2 (rand/long 5))]
    (n/invoke! partitioner test {:f :start, :value (between-clusters test)})
    (Thread/sleep (rand/long flap-ms))
    (n/invoke! partitioner test {:f :stop})
    (Thread/sleep (rand/long flap-ms))))

(defn- partition-nemesis
  "Resolves kinds of partitions to grudges. The history keeps the kind, and
  whom it hit."
  [db partitioner]
  (reify
    n/Reflection
    (fs [_] #{:start-partition :stop-partition})

    n/Nemesis
    (setup! [_ test]
      (partition-nemesis db (n/setup! partitioner test)))

    (invoke! [_ test {:keys [f value] :as op}]
      (case f
        :start-partition
        (if (= :flap value)
          (do (flap! partitioner test) op)
          (let [g (grudge db test value)]
            (n/invoke! partitioner test (assoc op :f :start, :value g))
            (assoc op :value
                   (if (= :link value)
                     value
                     [value (into (sorted-map) (update-vals g (comp vec sort)))]))))

        :stop-partition
        (do (n/invoke! partitioner test (assoc op :f :stop, :value nil))
            (assoc op :value :healed))))

    (teardown! [_ test]
      (n/teardown! partitioner test))))

(defn- partition-package [{:keys [db faults] :as opts}]
  (when (some faults [:partition :link])
    (let [stop {:type :info, :f :stop-partition}
          cuts (cond-> []
                 (faults :partition) (into cuts)
                 (faults :link)      (into link-cuts))]
      {:nemesis   (partition-nemesis db (n/partitioner))
       :generator (alternately opts
                               (fn [] {:type :info, :f :start-partition
                                       :value (rand/nth cuts)})
                               stop)
       :final-generator stop
       :perf #{{:name "partition", :start #{:start-partition}
                :stop #{:stop-partition}, :color "#E9DCA0"}}})))

;; Clocks

(def offsets-s
  "By how much clocks jump, in seconds."
  [-86400 -3600 -60 -1 1 60 3600 86400])

(defn- clock-nemesis []
  (reify
    n/Reflection
    (fs [_] #{:jump-clock :reset-clock})

    n/Nemesis
    (setup! [this _test] this)

    (invoke! [_ test {:keys [f value] :as op}]
      (let [offsets (case f
                      :jump-clock  value
                      :reset-clock (zipmap (:nodes test) (repeat 0)))]
        (c/on-nodes test (keys offsets)
                    (fn [test node]
                      (mdb/set-clock! test node (format "%+d" (get offsets node)))))
        op))

    (teardown! [_ _test])))

(defn- clock-package [{:keys [faults interval]}]
  (when (faults :clock)
    {:nemesis   (clock-nemesis)
     :generator (->> (fn [test _]
                       {:type :info, :f :jump-clock
                        :value (into (sorted-map)
                                     (for [node (rand/nonempty-subset (:nodes test))]
                                       [node (rand/nth offsets-s)]))})
                     (gen/stagger interval))
     :final-generator {:type :info, :f :reset-clock}
     :perf #{{:name "clock", :start #{:jump-clock}, :stop #{:reset-clock}
              :color "#A0E9E3"}}}))

;; Lost disks

(defn- wipe-nemesis
  "Empties disks, one at a time: not before all others count again, because a
  cluster is promised to survive the loss of what it may lose, not of more."
  [db]
  (reify
    n/Reflection
    (fs [_] #{:wipe})

    n/Nemesis
    (setup! [this _test] this)

    (invoke! [_ test {:keys [value] :as op}]
      (if (every? (partial mdb/disk-good? test) (:nodes test))
        (assoc op :value
               (c/on-nodes test value (partial mdb/wipe-disk! db)))
        (assoc op :value :some-disk-is-not-good)))

    (teardown! [_ _test])))

(defn- wipe-package [{:keys [db faults interval]}]
  (when (faults :wipe)
    {:nemesis   (wipe-nemesis db)
     :generator (->> (fn [test _] {:type :info, :f :wipe
                                   :value [(rand/nth (:nodes test))]})
                     (gen/stagger (* 2 interval)))
     :final-generator nil
     :perf #{{:name "wipe", :fs #{:wipe}, :start #{}, :stop #{}, :color "#C0A0E9"}}}))

;; Power

(defn- power-nemesis [db]
  (reify
    n/Reflection
    (fs [_] #{:cut-power})

    n/Nemesis
    (setup! [this _test] this)

    (invoke! [_ test {:keys [value] :as op}]
      (let [nodes (targeted db test value)]
        (mdb/cut-power! db test nodes)
        (assoc op :value [value nodes])))

    (teardown! [_ _test])))

(defn- power-package [{:keys [db faults interval]}]
  (when (faults :power)
    {:nemesis   (power-nemesis db)
     :generator (->> (fn [_ _] {:type :info, :f :cut-power
                                   :value (rand/nth [:one :failure :all])})
                     (gen/stagger (* 2 interval)))
     :final-generator nil
     :perf #{{:name "power", :fs #{:cut-power}, :start #{}, :stop #{}
              :color "#505050"}}}))

;; All

(defn- packet-package [{:keys [db faults interval]}]
  (when (faults :packet)
    (combined/packet-package
      {:db       db
       :faults   #{:packet}
       :interval interval
       :packet   {:targets   [:one :minority :all]
                  :behaviors [{:delay {}}
                              {:delay {:time :200ms, :jitter :50ms}}
                              {:loss {:percent :1%, :correlation :0%}}
                              {:delay {}, :reorder {}, :duplicate {}}]}})))

(defn package
  "A nemesis and its generators, for options :db, :faults (a set), :targets (of
  kills and pauses), :interval and :lasts (seconds)."
  [opts]
  (combined/compose-packages
    (into [] (keep #(% opts))
          [db-package partition-package clock-package wipe-package
           power-package packet-package])))
