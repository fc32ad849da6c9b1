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
	m.mu.Lock()
	defer m.mu.Unlock()
	if moved == m.dataMoved {
		return nil
	}
	own := m.s.member
	own.DataMoved = moved
	if err := own.write(m.s.opts.Dir); err != nil {
		return fmt.Errorf("recording that another member holds all data: %w", err)
	}
	m.dataMoved = moved
	return nil
}

// replyMoved responds to the message of another member that it has taken over all data, once that is recorded.
func (m *maintainer) replyMoved(msg *nats.Msg) {
	own := m.s.member
	if string(msg.Data) == own.ID {
		return
	}
	if err := m.recordDataMoved(true); err != nil {
		m.s.log.Error("leaving the store's cluster failed", "err", err)
		return
	}
	_ = msg.Respond([]byte(own.Node)) // without a response the other member repeats its message
}

// removeMovedData removes the outdated data of a member whose cluster's data another member has taken over.
func removeMovedData(dir string) error {
	m, err := readMember(dir)
	if err != nil || !m.DataMoved {
		return err
	}
	return errors.Join(os.RemoveAll(filepath.Join(dir, server.JetStreamStoreDir)), os.Remove(filepath.Join(dir, memberFile)))
}
