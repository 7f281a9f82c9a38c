(ns jepsen.meridian.db
  "Installs, starts, kills, pauses and empties `meridian serve` on the nodes.

  All that a node has lies in one folder:

      meridian      the binary (over SSH; local nodes share one)
      node.toml     tls/
      data/         disk (journal), meta (metadata log)
      meridian.log  meridian.pid  faketime
      down          there while we want the process not to run
      ended.log     the last line of each process that ended by itself"
  (:require [clojure.data.json :as json]
            [clojure.java [io :as io]
                          [shell :as shell]]
            [clojure.string :as str]
            [clojure.tools.logging :refer [info]]
            [dom-top.core :refer [real-pmap]]
            [jepsen [control :as c]
                    [core :as jepsen]
                    [db :as db]
                    [util :as util :refer [meh]]]
            [jepsen.control [net :as cn]
                            [util :as cu]]
            [jepsen.db.watchdog :as watchdog]
            [jepsen.meridian [disk :as disk]
                             [topology :as topology]]
            [clj-commons.slingshot :refer [try+ throw+]])
  (:import (java.net HttpURLConnection URL)
           (java.nio.file Files)
           (java.nio.file.attribute FileAttribute)))

(def peer-port-offset "From the Kafka port to that for other nodes." 100)
(def admin-port-offset "From the Kafka port to that for operators." 200)

(defn kafka-port [test] (:kafka-port test))
(defn peer-port  [test] (+ (:kafka-port test) peer-port-offset))
(defn admin-port [test] (+ (:kafka-port test) admin-port-offset))

(defn dir
  "A node's folder."
  [test node]
  (str (:dir test) "/" node))

(defn- in-dir [test node file] (str (dir test node) "/" file))

(defn- binary
  "Path of the binary on a node. Local nodes share a copy: the original may be
  built anew during a test."
  [test node]
  (if (:local test)
    (str (:dir test) "/meridian")
    (in-dir test node "meridian")))

;; Configuration

(defn- quoted [s] (pr-str (str s)))

(defn configuration
  "A node's configuration file. Takes a function of a node to its address."
  [test node cluster-id address]
  (let [test   (topology/cluster-of test node)
        {:keys [id dc rack]} (topology/place test node)
        alone? (= 1 (count (:nodes test)))
        listen (fn [port] (quoted (str (address node) ":" port)))
        lines
        (concat
          ["[node]"
           (str "id = " id)
           (str "datacenter = " (quoted dc))
           (str "rack = " (quoted rack))
           "data = \"data\""
           ""
           "[listen]"
           (str "kafka = " (listen (kafka-port test)))
           (when-not alone? (str "peer = " (listen (peer-port test))))
           (str "admin = " (listen (admin-port test)))
           "insecure = true"
           ""
           "[kafka]"
           ; Consumers would create topics with another number of partitions.
           "auto_create_topics = false"
           "group_initial_rebalance_delay_ms = 100"
           ""
           "[limits]"
           (str "worker_threads = " (:worker-threads test))
           ""
           "[cluster]"
           (str "id = " (quoted cluster-id))
           (str "geometry = " (quoted (topology/geometry test)))]
          (mapcat (fn [{:keys [node id dc rack]}]
                    [""
                     "[[cluster.nodes]]"
                     (str "id = " id)
                     (str "datacenter = " (quoted dc))
                     (str "rack = " (quoted rack))
                     (str "peer = " (quoted (str (address node) ":"
                                                 (peer-port test))))])
                  (topology/places test))
          (when-not alone? ["" "[tls]" "folder = \"tls\""]))]
    (str (str/join "\n" (remove nil? lines)) "\n")))

(defn- sh!
  "Runs a command on the control node; returns its output, throws if it fails."
  [& command]
  (let [{:keys [exit out err]} (apply shell/sh command)]
    (when-not (zero? exit)
      (throw+ {:type ::command-failed, :command command, :exit exit, :err err}
              nil "%s: %s" (str/join " " command) err))
    (str/trim out)))

(defn- certify!
  "Makes a cluster's authority and its nodes' certificates on the control node.
  Returns {:folder, :cluster-id}."
  [test]
  (let [folder (str (Files/createTempDirectory "meridian-jepsen"
                                               (make-array FileAttribute 0)))
        ca     (str folder "/ca")]
    (sh! (:binary test) "cert" "ca" "--out" ca)
    (doseq [{:keys [id]} (topology/places test)]
      (sh! (:binary test) "cert" "node" (str id)
           "--ca" ca "--out" (str folder "/" id)))
    {:folder     folder
     :cluster-id (str/trim (slurp (str ca "/cluster-id")))}))

(defn- prepare!
  "Makes what nodes need on the control node: certificates, and a copy of the
  binary for local nodes. Returns what `certify!` does of each cluster."
  [test]
  (when (:local test)
    (io/make-parents (binary test nil))
    (sh! "cp" "--remove-destination" (:binary test) (binary test nil)))
  (update-vals (topology/clusters test) certify!))

;; What operators say

(defn command!
  "Runs a command of the binary on the control node, which speaks to the nodes of
  one of the clusters. Returns {:exit, :said, :err}; what it said is JSON."
  [test side & args]
  (let [{:keys [nodes]} (get (topology/clusters test) side)
        bootstrap (str/join "," (map #(str % ":" (kafka-port test)) nodes))
        {:keys [exit out err]}
        (apply shell/sh (:binary test) (concat args ["-o" "json" "-b" bootstrap]))]
    {:exit exit
     :err  (str/trim err)
     :said (when-not (str/blank? out) (json/read-str out :key-fn keyword))}))

;; What nodes say of themselves

(defn- http
  "Body of a page of a node's operator port, nil unless it answers 200."
  [test node page]
  (try
    (let [url  (URL. (str "http://" node ":" (admin-port test) page))
          conn ^HttpURLConnection (.openConnection url)]
      (.setConnectTimeout conn 1000)
      (.setReadTimeout conn 2000)
      (try (when (= 200 (.getResponseCode conn))
             (slurp (.getInputStream conn)))
           (finally (.disconnect conn))))
    (catch java.io.IOException _ nil)))

(defn healthy?
  "Whether a node can serve."
  [test node]
  (some? (http test node "/health")))

(defn disk-good?
  "Whether a node's disk counts: not while it refills."
  [test node]
  (= "Good" (some-> (http test node "/node")
                    (json/read-str :key-fn keyword)
                    :disk :standing)))

(defn cluster-status
  "The cluster as one of some nodes knows it, or nil. Asks all at once: those
  that are paused do not answer, and faults wait for this."
  [test nodes]
  (->> nodes
       (real-pmap (fn [node] (http test node "/status")))
       (some (fn [body] (some-> body (json/read-str :key-fn keyword))))))

(defn- await-until
  "Calls f until it returns true. Throws a map of the given type if it has not
  after as many seconds."
  [seconds type f]
  (let [deadline (+ (System/nanoTime) (* 1000000000 seconds))]
    (loop []
      (when-not (f)
        (when (< deadline (System/nanoTime))
          (throw+ {:type type, :seconds seconds}))
        (Thread/sleep 200)
        (recur)))))

;; Processes

(def clock-file
  "Inside a node's folder: what libfaketime makes of its clock."
  "faketime")

(defn set-clock!
  "Sets what a node's process takes for the time, e.g. \"+0\", \"+3600\"."
  [test node spec]
  (let [file (in-dir test node clock-file)]
    (c/exec :echo spec :> (str file ".new"))
    (c/exec :mv (str file ".new") file)))

(defn- clock-env
  "The process reads its wall clock through libfaketime: a machine that runs
  nine nodes and the test has only one clock. Its monotonic clock is the real
  one, as it is with a jump of a machine's clock."
  [test node]
  (when (:fake-clock? test)
    {:LD_PRELOAD               (:faketime-lib test)
     :FAKETIME_TIMESTAMP_FILE  (in-dir test node clock-file)
     :FAKETIME_NO_CACHE        "1"
     :DONT_FAKE_MONOTONIC      "1"
     :FAKETIME_DONT_FAKE_MONOTONIC "1"}))

(defn- pid-file [test node] (in-dir test node "meridian.pid"))

(defn- signal!
  "Sends a signal to a node's process, if it runs."
  [test node signal]
  (let [file (pid-file test node)]
    (c/exec :bash :-c (str "if [ -e " file " ]; then kill -" signal
                           " $(cat " file ") 2>/dev/null || true; fi"))))

(defn running?
  "Whether a node's process is there, paused or not."
  [test node]
  (= "yes" (c/exec :bash :-c
                   (str "test -e /proc/$(cat " (pid-file test node)
                        " 2>/dev/null)/exe && echo yes || echo no"))))

(def ended-log "Inside a node's folder: how processes ended that nobody killed." "ended.log")

(defn- note-end!
  "Writes down how a node's process ended, if one is gone that we did not kill: a
  fault, however well the node comes back."
  [test node]
  (let [[down ended log pid] (map (partial in-dir test node)
                                  ["down" ended-log "meridian.log" "meridian.pid"])]
    (c/exec :bash :-c
            (str "if [ -e " down " ]; then rm " down "; "
                 "elif [ -e " pid " ] && [ ! -e /proc/$(cat " pid ")/exe ]; "
                 "then tail -n 1 " log " >> " ended "; fi"))))

(defn- start! [test node]
  (note-end! test node)
  (cu/start-daemon! {:logfile           (in-dir test node "meridian.log")
                     :pidfile           (pid-file test node)
                     :chdir             (dir test node)
                     :match-executable? false
                     :env               (merge {:MERIDIAN_LOG (:log-level test)}
                                               (clock-env test node))}
                    (binary test node)
                    :serve :--config "node.toml"))

(defn- kill!
  "Kills a node's process and waits until it has let go of its files."
  [test node]
  (c/exec :bash :-c (str "! [ -d " (dir test node) " ] || touch " (in-dir test node "down")))
  (signal! test node "KILL")
  (await-until 10 ::does-not-die #(not (running? test node)))
  :killed)

(defn wipe-disk!
  "Kills a node, empties its disk and starts it again. The metadata log stays."
  [db test node]
  (db/kill! db test node)
  (c/exec :rm :-rf (in-dir test node "data/disk"))
  (db/start! db test node)
  :wiped)

(defn cut-power!
  "Cuts the power of nodes, all at once, and starts them again."
  [db test nodes]
  (c/on-nodes test nodes (partial db/kill! db))
  (c/on-nodes test nodes (fn [test node] (disk/cut-power! (dir test node))))
  (c/on-nodes test nodes (partial db/start! db))
  :power-cut)

(defn- remove-all!
  "Removes all that a node keeps. An earlier run that was killed may have left its
  disk mounted."
  [test node]
  (disk/unmount! (dir test node))
  (c/exec :rm :-rf (dir test node)))

(defrecord DB [prepared]
  db/DB
  (setup! [this test node]
    (info "Setting up" (topology/place test node))
    (let [{:keys [side]} (topology/cluster-of test node)
          {:keys [folder cluster-id]} (get @prepared side)
          {:keys [id]} (topology/place test node)
          tls (in-dir test node "tls")]
      (remove-all! test node)
      (c/exec :mkdir :-p tls)
      (when (:disk-image? test)
        (disk/make! (dir test node)))
      (doseq [file ["ca.pem" "node.pem" "node-key.pem"]]
        (c/upload (str folder "/" id "/" file) (str tls "/" file)))
      (when-not (:local test)
        (c/upload (:binary test) (binary test node))
        (c/exec :chmod "+x" (binary test node)))
      (cu/write-file! (configuration test node cluster-id cn/ip)
                      (in-dir test node "node.toml"))
      (c/exec :touch (in-dir test node ended-log))
      (set-clock! test node "+0"))
    (jepsen/synchronize test)
    (start! test node)
    ; Jepsen begins its set-up again when it sees this.
    (await-until 60 ::db/setup-failed #(healthy? test node))
    (jepsen/synchronize test))

  (teardown! [this test node]
    (when-not (:leave-db-running? test)
      (kill! test node)
      (remove-all! test node)))

  db/Kill
  (start! [_ test node] (start! test node))
  (kill!  [_ test node] (kill! test node))

  db/Pause
  (pause!  [_ test node] (signal! test node "STOP") :paused)
  (resume! [_ test node] (signal! test node "CONT") :resumed)

  db/Primary
  (setup-primary! [_ _test _node])
  (primaries [_ test]
    ; The leader of each cluster's metadata plane.
    (vec (for [cluster (vals (topology/clusters test))
               :let [leader (-> (cluster-status cluster (shuffle (:nodes cluster)))
                                :raft :leader)]
               {:keys [node id]} (topology/places cluster)
               :when (= leader id)]
           node)))

  db/LogFiles
  (log-files [_ test node]
    {(in-dir test node "meridian.log") "meridian.log"
     (in-dir test node ended-log)      ended-log
     (in-dir test node "node.toml")    "node.toml"}))

(defn db
  "The database. A watchdog starts nodes that end by themselves, as a service
  manager does; each end is written down, and judged."
  [test]
  (watchdog/db {:running? running?, :interval 2000}
               (->DB (delay (prepare! test)))))
