(ns jepsen.meridian.disk
  "A node's disk as an ext4 file system in a file, so that power can be cut:
  what the node has written and not synced is in the machine's memory only, not
  in the file.

      data/  <- mounted from disk.img

  Cut: kill -9; copy disk.img as it is; unmount; mount the copy. Its journal is
  replayed as after a real power cut. Needs root, and loop devices."
  (:require [jepsen.control :as c]))

(def size "Size of a node's disk; the file is sparse." "2G")

(defn- image [dir] (str dir "/disk.img"))
(defn- mount-point [dir] (str dir "/data"))

(defn- mount! [dir]
  (c/su (c/exec :mount :-o :loop (image dir) (mount-point dir))))

(defn unmount!
  "Unmounts the disk in a node's folder, if it is mounted."
  [dir]
  (c/su (c/exec :bash :-c (str "if mountpoint -q " (mount-point dir)
                               "; then umount " (mount-point dir) "; fi"))))

(defn make!
  "Makes a new disk in a node's folder and mounts it as its data."
  [dir]
  (c/exec :mkdir :-p (mount-point dir))
  (c/exec :truncate :-s size (image dir))
  (c/su (c/exec :mkfs.ext4 :-q (image dir)))
  (mount! dir))

(defn cut-power!
  "Takes from the disk what was not synced. The node must have been killed."
  [dir]
  (let [cut (str dir "/cut.img")]
    (c/exec :cp "--sparse=always" (image dir) cut)
    (unmount! dir)
    (c/exec :mv cut (image dir))
    (mount! dir)))
