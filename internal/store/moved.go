package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// recordDataMoved records on disk that another member has taken over all data: see member.DataMoved.
func (m *maintainer) recordDataMoved() error {
	m.s.movedMu.Lock()
	defer m.s.movedMu.Unlock()
	m.s.movedMessages++
	return m.writeDataMoved(true)
}

// clearDataMoved records that no member has taken over all data, as the cluster's state says. messages is what
// movedMessages returned before that state was requested: a message that was received meanwhile is newer than the state.
func (m *maintainer) clearDataMoved(messages int) error {
	m.s.movedMu.Lock()
	defer m.s.movedMu.Unlock()
	if m.s.movedMessages != messages {
		return nil
	}
	return m.writeDataMoved(false)
}

// movedMessages returns how many messages have reported that another member has taken over all data.
func (m *maintainer) movedMessages() int {
	m.s.movedMu.Lock()
	defer m.s.movedMu.Unlock()
	return m.s.movedMessages
}

// writeDataMoved writes the identity of this member if it changes. The caller holds movedMu.
func (m *maintainer) writeDataMoved(moved bool) error {
	if moved == m.s.dataMoved {
		return nil
	}
	own := m.s.member
	own.DataMoved = moved
	if err := own.write(m.s.opts.Dir); err != nil {
		return fmt.Errorf("recording whether another member holds all data: %w", err)
	}
	m.s.dataMoved = moved
	return nil
}

// replyMoved responds to the message of another member that it has taken over all data, once that is recorded.
func (m *maintainer) replyMoved(msg *nats.Msg) {
	own := m.s.member
	if string(msg.Data) == own.ID {
		return
	}
	if err := m.recordDataMoved(); err != nil {
		m.s.log.Error("another member has taken over all data of the store's cluster, and recording that failed, retrying: free space or repair the disk", "err", err)
		return
	}
	_ = msg.Respond([]byte(own.Node)) // without a response, Detach of the other member fails; it may be called again
}

// removeMovedData removes the outdated data of a member whose cluster's data another member has taken over.
func removeMovedData(dir string) error {
	m, err := readMember(dir)
	if err != nil || !m.DataMoved {
		return err
	}
	return errors.Join(os.RemoveAll(filepath.Join(dir, server.JetStreamStoreDir)), os.Remove(filepath.Join(dir, memberFile)))
}
