package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// recordDataMoved records on disk whether another member has taken over all data: see member.DataMoved.
func (m *maintainer) recordDataMoved(moved bool) error {
	s := m.s
	s.movedMu.Lock()
	defer s.movedMu.Unlock()
	if moved == s.dataMoved {
		return nil
	}
	own := s.member
	own.DataMoved = moved
	if err := own.write(s.opts.Dir); err != nil {
		return fmt.Errorf("recording whether another member holds all data: %w", err)
	}
	s.dataMoved = moved
	return nil
}

// replyMoved responds to the message of another member that it has taken over all data, once that is recorded.
func (m *maintainer) replyMoved(msg *nats.Msg) {
	own := m.s.member
	if string(msg.Data) == own.ID {
		return
	}
	if err := m.recordDataMoved(true); err != nil {
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
