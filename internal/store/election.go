package store

import (
	"time"
	_ "unsafe" // for go:linkname
)

// Times of the elections of NATS. The defaults of NATS are heartbeats each second and elections after 4 to 9
// seconds. A standby controller must take over sooner, and NATS has no options for these times. If a version of
// NATS renames one of the linked variables, skyserve cannot be linked.
const (
	// heartbeatInterval is the interval of the heartbeats of each leader.
	heartbeatInterval = 250 * time.Millisecond
	// electionMin and electionMax limit how long a member waits for a heartbeat before it asks for
	// votes: several round trips half a world away, and a disk that takes a second to sync.
	electionMin = 1500 * time.Millisecond
	electionMax = 3 * time.Second
	// quorumTimeout is the time without responses of a majority after which a leader steps down. The leader checks it
	// each third of this time.
	quorumTimeout = 3 * time.Second
)

//go:linkname natsHeartbeat github.com/nats-io/nats-server/v2/server.hbInterval
var natsHeartbeat time.Duration

//go:linkname natsElectionMin github.com/nats-io/nats-server/v2/server.minElectionTimeout
var natsElectionMin time.Duration

//go:linkname natsElectionMax github.com/nats-io/nats-server/v2/server.maxElectionTimeout
var natsElectionMax time.Duration

//go:linkname natsQuorumTimeout github.com/nats-io/nats-server/v2/server.lostQuorumInterval
var natsQuorumTimeout time.Duration

//go:linkname natsQuorumCheck github.com/nats-io/nats-server/v2/server.lostQuorumCheck
var natsQuorumCheck time.Duration

func init() {
	natsHeartbeat = heartbeatInterval
	natsElectionMin, natsElectionMax = electionMin, electionMax
	natsQuorumTimeout, natsQuorumCheck = quorumTimeout, quorumTimeout/3
}
