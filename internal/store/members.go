package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"skyserve/internal/atomicfile"
)

// Limits of the maintenance of a cluster, each with its reason.
const (
	// maintainEvery is the interval at which members observe the cluster, and the leader repairs it.
	maintainEvery = time.Second
	// removeAfter is how long a member that is no longer configured, or whose name is unknown, must be offline before it
	// is removed: longer than any restart of its process.
	removeAfter = 30 * time.Second
	// replacedAfter is the same for a member whose node responds from another disk: its machine was replaced, and
	// its disk does not return.
	replacedAfter = 5 * time.Second
	// clusterStream is the stream that marks an open cluster. Clients create no streams before it exists, so
	// that a single store can be restored into an empty cluster.
	clusterStream = "skyserve_cluster"
	// originKey is the key in the metadata of clusterStream for the member that opened the cluster, with the data
	// of its single store if it had one.
	originKey = "skyserve_origin"
	// detachedKey is the key in the metadata of clusterStream for the member that takes over all data: see
	// Server.Detach.
	detachedKey = "skyserve_detached"
	// singleStoreDir is the directory, inside that of a member, with the snapshot of the single store that it was before.
	singleStoreDir = "single"
	// singleStoreTag is the tag of a member with such a snapshot.
	singleStoreTag = "skyserve:single"
	// observeTimeout limits the wait for the responses of other members.
	observeTimeout = 300 * time.Millisecond
)

// maintainer observes the cluster that a NATS server belongs to. It restores this member's single store into the cluster,
// and repairs the cluster while this member leads it.
type maintainer struct {
	s      *Server
	ns     *runningNATS
	user   *nats.Conn      // to the account with the streams
	system *nats.Conn      // to the system account
	ctx    context.Context //nolint:containedctx // of the server, which outlives a maintainer
	end    context.CancelFunc
	done   chan struct{}

	offline  map[string]time.Time // by peer: when it was first observed to be offline
	received receivedHealth
	healing  healing
}

// startMaintainer starts the maintainer of a server. offline is that of an earlier maintainer, or empty.
func (s *Server) startMaintainer(ctx context.Context, ns *runningNATS, offline map[string]time.Time) error {
	if s.opts.Cluster == nil || ns == nil {
		return nil
	}
	m := &maintainer{s: s, ns: ns, ctx: ctx, done: make(chan struct{}), offline: offline}
	var err error
	if m.user, err = connectInProcess(ns.Server, internalUser, s.opts.secret); err != nil {
		return err
	}
	if m.system, err = connectInProcess(ns.Server, systemUser, s.opts.secret); err != nil {
		m.user.Close()
		return err
	}
	_, err = m.system.Subscribe(memberHealthSubject, m.received.receive)
	if err == nil {
		_, err = m.user.Subscribe(movedSubject, m.replyMoved)
	}
	if err != nil {
		m.user.Close()
		m.system.Close()
		return err
	}
	ctx, m.end = context.WithCancel(ctx)
	s.setMaintainer(m)
	go m.run(ctx)
	return nil
}

// stopMaintainer stops the maintainer of the server, if any, and waits for it.
func (s *Server) stopMaintainer() {
	s.mu.Lock()
	m := s.maintainer
	s.mu.Unlock()
	if m != nil {
		m.end()
		<-m.done
		m.user.Close()
		m.system.Close()
		s.setMaintainer(nil)
	}
}

func (s *Server) setMaintainer(m *maintainer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.maintainer = m
}

// connectInProcess connects to a server without a socket.
func connectInProcess(ns *server.Server, user, secret string) (*nats.Conn, error) {
	return nats.Connect("", nats.InProcessServer(ns), nats.UserInfo(user, secret), nats.Name("skyserve-"+user), nats.NoReconnect())
}

func (m *maintainer) run(ctx context.Context) {
	defer close(m.done)
	var reported string
	for {
		now := time.Now()
		status := m.observe(now)
		m.exchangeHealth(now, &status)
		m.s.setObserved(status)
		problem := ""
		if err := m.maintain(ctx, &status); err != nil && ctx.Err() == nil {
			status.Problem, problem = err.Error(), err.Error()
		}
		if problem != reported && problem != "" {
			m.s.log.Warn("maintaining the store's cluster failed; retrying", "err", problem)
		}
		reported = problem
		m.s.setCluster(status)
		if !sleep(ctx, m.s.opts.maintainEvery) {
			return
		}
	}
}

// maintain makes one attempt at every repair that is due.
func (m *maintainer) maintain(ctx context.Context, status *ClusterStatus) error {
	if status.Leader == "" || status.jetStreamDisabled {
		return nil
	}
	js, err := jetstream.New(m.user)
	if err != nil {
		return err
	}
	octx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	messages := m.movedMessages()
	mark, err := js.Stream(octx, clusterStream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return m.openCluster(ctx, js, status)
	}
	if err != nil {
		return fmt.Errorf("reading stream %s: %w", clusterStream, err)
	}
	status.Open = true
	if err := m.removeSingleStoreSnapshot(mark.CachedInfo()); err != nil {
		return err
	}
	config := mark.CachedInfo().Config
	if config.Metadata[detachedKey] == "" {
		if err := m.clearDataMoved(messages); err != nil {
			return err
		}
	}
	if config.Metadata[detachedKey] == m.s.member.ID && !m.s.detaching.Load() {
		delete(config.Metadata, detachedKey) // its Detach failed, or it was started as a member again
		if _, err := js.UpdateStream(octx, config); err != nil {
			return fmt.Errorf("updating stream %s: %w", clusterStream, err)
		}
	}
	streams, err := listStreams(octx, js)
	if err != nil {
		return fmt.Errorf("listing streams: %w", err)
	}
	status.Unreplicated = unreplicated(streams)
	if !m.ns.JetStreamIsLeader() {
		return nil
	}
	err = m.removeReplaced(ctx, *status)
	if config.Metadata[detachedKey] == "" { // otherwise a member takes over all streams: see Detach
		err = errors.Join(err, m.heal(ctx, *status, streams), m.replicate(octx, js, streams, status.replicas()))
	}
	return err
}

// openCluster opens a cluster without data: it restores the single store of this member, or else, on the leader,
// waits for all members and creates an empty store if none of them has one.
func (m *maintainer) openCluster(ctx context.Context, js jetstream.JetStream, status *ClusterStatus) error {
	dir := filepath.Join(m.s.opts.Dir, singleStoreDir)
	names, err := snapshotStreams(dir)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		if !m.ns.JetStreamIsLeader() {
			return nil
		}
		seen, err := m.ping(ctx)
		if err != nil {
			return err
		}
		for _, node := range m.s.members() {
			tags, found := seen[node]
			if !found {
				return fmt.Errorf("the cluster has no data yet and waits for member %s, which may have the data of a single store; start it, or replace its machine", node)
			}
			if slices.Contains(tags, singleStoreTag) {
				return fmt.Errorf("the cluster waits until member %s has restored its single store", node)
			}
		}
	}
	for _, name := range names {
		if name == clusterStream {
			continue // of an earlier cluster
		}
		if err := js.DeleteStream(ctx, name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("removing the unfinished restore of stream %s: %w", name, err)
		}
		if err := restoreSnapshot(ctx, m.user, name, dir, status.replicas()); err != nil {
			return fmt.Errorf("restoring stream %s: %w", name, err)
		}
	}
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name: clusterStream, Description: "skyserve: the cluster has its data", Subjects: []string{clusterStream},
		Storage: jetstream.FileStorage, MaxMsgs: 1, Replicas: status.replicas(), Metadata: map[string]string{originKey: m.s.member.ID},
	})
	if err != nil {
		return fmt.Errorf("creating stream %s: %w", clusterStream, err)
	}
	m.s.log.Info("the store's cluster is open", "cluster", m.s.member.Cluster, "restored", len(names))
	return nil
}

// removeSingleStoreSnapshot removes the snapshot of this member's single store once it has been restored. If the
// cluster was opened by another member, the snapshot was not restored: it is renamed, and an error is logged.
func (m *maintainer) removeSingleStoreSnapshot(info *jetstream.StreamInfo) error {
	dir := filepath.Join(m.s.opts.Dir, singleStoreDir)
	if _, err := os.Stat(dir); err != nil {
		return nil //nolint:nilerr // almost always: there is none
	}
	if origin := info.Config.Metadata[originKey]; origin != m.s.member.ID {
		kept := fmt.Sprintf("%s.kept-%s", dir, m.s.member.ID)
		m.s.log.Error("the cluster already has data, so the single store of this member was not restored; no command restores it: keep its snapshot to inspect it, or remove it", "snapshot", kept)
		return atomicfile.Rename(dir, kept)
	}
	return os.RemoveAll(dir)
}

// ping returns the tags of all members that respond, by node.
func (m *maintainer) ping(ctx context.Context) (map[string][]string, error) {
	sub, err := m.system.SubscribeSync(nats.NewInbox())
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection closes with the server
	if err := m.system.PublishRequest("$SYS.REQ.SERVER.PING", sub.Subject, nil); err != nil {
		return nil, err
	}
	octx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	seen := map[string][]string{}
	for {
		msg, err := sub.NextMsgWithContext(octx)
		if err != nil {
			return seen, ctx.Err() // all that responded in time
		}
		var r server.ServerStatsMsg
		if err := json.Unmarshal(msg.Data, &r); err == nil {
			seen[nodeOf(r.Server.Name)] = r.Server.Tags
		}
	}
}

// removeReplaced removes one member that was replaced, or is no longer configured, from the cluster and its streams.
func (m *maintainer) removeReplaced(ctx context.Context, status ClusterStatus) error {
	replaced, found := replacedMember(status.Members, m.s.members(), m.s.opts.removeAfter)
	if !found {
		return nil
	}
	node := cmp.Or(replaced.Node, "(unknown name)")
	var response server.JSApiMetaServerRemoveResponse
	err := call(ctx, m.system, server.JSApiRemoveServer, server.JSApiMetaServerRemoveRequest{Peer: replaced.peer}, &response)
	if refused := (*server.ApiError)(nil); errors.As(err, &refused) && server.ErrorIdentifier(refused.ErrCode) == server.JSClusterServerMemberChangeInflightErr {
		return nil // such as an earlier attempt of this removal; the next observation finds what remains
	}
	if err != nil {
		return fmt.Errorf("removing member %s: %w", node, err)
	}
	m.s.log.Info("a member was removed from the store's cluster: it was replaced or is no longer configured", "node", node, "offline", replaced.OfflineFor.Round(time.Second))
	return nil
}

// replacedMember returns a member to remove, which is one of these:
//   - Its node responds from another disk, and it has not responded for replacedAfter.
//   - Its node is not configured, and it has not responded for removeAfter.
//   - Its name is unknown, all configured nodes respond, and it has not responded for removeAfter.
//
// It returns none while fewer than Replicas nodes respond, so that a majority remains.
func replacedMember(members []MemberStatus, configured []string, removeAfter time.Duration) (replaced MemberStatus, found bool) {
	online := map[string]bool{}
	for _, p := range members {
		if p.State != MemberOffline {
			online[p.Node] = true
		}
	}
	if len(online) < Replicas {
		return replaced, false
	}
	allConfiguredOnline := !slices.ContainsFunc(configured, func(node string) bool { return !online[node] })
	for _, p := range members {
		// After a restart the name of a member that is offline is unknown.
		isReplaced := allConfiguredOnline || online[p.Node] || p.Node != "" && !slices.Contains(configured, p.Node)
		minAge := removeAfter
		if online[p.Node] {
			minAge = min(removeAfter, replacedAfter)
		}
		if p.State == MemberOffline && p.OfflineFor >= minAge && isReplaced {
			return p, true
		}
	}
	return replaced, false
}

// listStreams returns the streams whose leaders respond, as these see them.
func listStreams(ctx context.Context, js jetstream.JetStream) ([]*jetstream.StreamInfo, error) {
	var streams []*jetstream.StreamInfo
	listed := map[string]bool{} // a page begins at the number of streams received before: if one was missing, another is sent twice
	list := js.ListStreams(ctx)
	for info := range list.Info() {
		if !listed[info.Config.Name] {
			streams = append(streams, info)
		}
		listed[info.Config.Name] = true
	}
	return streams, list.Err()
}

// unreplicated returns the streams that fewer than Replicas members hold with all changes, sorted.
func unreplicated(streams []*jetstream.StreamInfo) (names []string) {
	for _, info := range streams {
		current := 0
		if info.Cluster != nil {
			for _, p := range info.Cluster.Replicas {
				if p.Current && !p.Offline {
					current++
				}
			}
		}
		if current+1 < Replicas {
			names = append(names, info.Config.Name)
		}
	}
	slices.Sort(names)
	return names
}

// replicate gives each stream as many replicas as the cluster can hold. It does nothing while fewer than Replicas
// members respond.
func (m *maintainer) replicate(ctx context.Context, js jetstream.JetStream, streams []*jetstream.StreamInfo, replicas int) error {
	if replicas < Replicas {
		return nil
	}
	for _, info := range streams {
		if info.Config.Replicas >= replicas {
			continue
		}
		m.s.log.Info("replicating a stream", "stream", info.Config.Name, "replicas", replicas)
		info.Config.Replicas = replicas
		if _, err := js.UpdateStream(ctx, info.Config); err != nil {
			return fmt.Errorf("replicating stream %s: %w", info.Config.Name, err)
		}
	}
	return nil
}

// prepareMember prepares a directory for a cluster: a single store in it becomes a snapshot, which is
// restored into the cluster. A crash at any point is repaired by the next start.
func prepareMember(ctx context.Context, o Options, m member) error {
	current, err := readMember(o.Dir)
	if err != nil || current == m {
		return err
	}
	var (
		data  = filepath.Join(o.Dir, server.JetStreamStoreDir)
		dir   = filepath.Join(o.Dir, singleStoreDir)
		draft = dir + ".tmp"
	)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) && len(streamsOnDisk(o.Dir)) > 0 {
		if err := exportSingleStore(ctx, o, draft); err != nil {
			return err
		}
		if err := atomicfile.Rename(draft, dir); err != nil {
			return err
		}
	}
	if _, err := os.Stat(data); err == nil {
		if err := os.RemoveAll(data); err != nil {
			return err
		}
	}
	return m.write(o.Dir)
}

// exportSingleStore writes the snapshots of the single store in o.Dir to a directory.
func exportSingleStore(ctx context.Context, o Options, dir string) error {
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return err
	}
	return serveOffline(ctx, o, func(nc *nats.Conn) error { return writeSnapshots(ctx, nc, dir) })
}

// serveOffline starts the single store in o.Dir without a listener, calls use with a connection to it, and stops it.
func serveOffline(ctx context.Context, o Options, use func(*nats.Conn) error) error {
	o.Cluster, o.TLS = nil, nil
	n := natsOptions(o, "127.0.0.1", 0)
	n.DontListen, n.Authorization = true, ""
	onDisk := streamsOnDisk(o.Dir)
	ns, err := server.NewServer(n)
	if err != nil {
		return err
	}
	log := newLogger(o.Logger)
	ns.SetLogger(log, false, false)
	ns.Start()
	defer stopNATS(&runningNATS{Server: ns})
	if err := waitReady(ctx, ns, log); err != nil {
		return err
	}
	if err := checkRecovered(ns, onDisk); err != nil {
		return err
	}
	nc, err := nats.Connect("", nats.InProcessServer(ns), nats.NoReconnect())
	if err != nil {
		return err
	}
	defer nc.Close()
	return use(nc)
}
