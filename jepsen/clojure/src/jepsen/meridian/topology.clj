(ns jepsen.meridian.topology
  "Which node is where. Nodes are given in order: the racks of the first
  datacenter, then those of the second, and so on.

      n1 n2 n3 | n4 n5 n6 | n7 n8 n9
      A1 A2 A3 | B1 B2 B3 | C1 C2 C3

  A test of mirrors has two clusters, :west and :east. The last three nodes are
  the east's, one in each of its datacenters; all others are the west's.")

(def east-nodes "How many nodes the second cluster has." 3)

(defn pair
  "A test with its nodes split into two clusters."
  [{:keys [nodes] :as test}]
  (let [[west east] (split-at (- (count nodes) east-nodes) nodes)]
    (when (empty? west)
      (throw (IllegalArgumentException.
               (str "two clusters take more than " east-nodes " nodes, not "
                    (count nodes)))))
    (assoc test :clusters {:west {:nodes (vec west), :dcs (:dcs test)}
                           :east {:nodes (vec east), :dcs east-nodes}})))

(defn clusters
  "A map of the names of a test's clusters to tests, each as if it had that
  cluster only. A test of one cluster has it under nil."
  [{:keys [clusters] :as test}]
  (if clusters
    (into (sorted-map)
          (for [[side cluster] clusters]
            [side (merge (dissoc test :clusters) cluster {:side side})]))
    {nil test}))

(defn cluster-of
  "The test as if it had a node's cluster only."
  [test node]
  (first (filter (comp (partial some #{node}) :nodes) (vals (clusters test)))))

(defn racks-per-dc
  "How many racks a datacenter has. Throws if nodes don't fill all of them."
  [{:keys [nodes dcs]}]
  (let [n (count nodes)]
    (when-not (and (pos? n) (zero? (mod n dcs)))
      (throw (IllegalArgumentException.
               (str n " nodes cannot be spread over " dcs " datacenters: give"
                    " one node for each rack, and the same number of racks"
                    " to each datacenter (--nodes, --dcs)"))))
    (quot n dcs)))

(defn geometry
  "Meridian's name for the shape of the cluster's storage group."
  [test]
  (let [racks (racks-per-dc test)]
    (case [(:dcs test) racks]
      [3 3] "mirror-3-dc"
      [3 1] "one-per-dc"
      [1 1] "none"
      (throw (IllegalArgumentException.
               (str "there is no cluster of " (:dcs test) " datacenters with "
                    racks " racks each; use 3 x 3, 3 x 1 or 1 x 1"))))))

(defn places
  "Takes a test. Returns a vector of {:node, :id, :dc, :rack}, in the order of
  the test's nodes. Ids begin with 1, datacenters with \"A\", racks with
  \"A1\"."
  [{:keys [nodes] :as test}]
  (let [racks (racks-per-dc test)]
    (mapv (fn [i node]
            (let [dc (str (char (+ (int \A) (quot i racks))))]
              {:node node
               :id   (inc i)
               :dc   dc
               :rack (str dc (inc (mod i racks)))}))
          (range)
          nodes)))

(defn place
  "Where one node is."
  [test node]
  (first (filter (comp #{node} :node) (places (cluster-of test node)))))

(defn by-dc
  "A sorted map of datacenters to their nodes."
  [test]
  (into (sorted-map)
        (update-vals (group-by :dc (places test)) #(mapv :node %))))

(defn failures
  "Sets of nodes that a cluster of this shape must tolerate losing, largest
  first: with three racks in each datacenter, a datacenter and one rack of
  another; with one, a datacenter. A map of names to vectors of nodes."
  [test]
  (let [dcs     (by-dc test)
        dc-only (into {} (for [[dc nodes] dcs] [(str "DC " dc) nodes]))]
    (cond
      (= 1 (count dcs))        {}
      (= 1 (racks-per-dc test)) dc-only
      :else
      (into dc-only
            (for [[dc nodes] dcs
                  {:keys [node rack] :as p} (places test)
                  :when (not= dc (:dc p))]
              [(str "DC " dc " + rack " rack) (conj nodes node)])))))
