package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// The model list of an engine contains its model, further names of it, and the LoRA adapters that are
// loaded. Adapters are loaded and unloaded at run time, so the list is read again at a low rate, and soon
// after the engine rejected a name. The metric vllm:lora_requests_info is not used: it names only the
// adapters of running and pending requests, so it does not show that an adapter is missing.

// ModelList is the contents of a replica's /v1/models.
type ModelList struct {
	// Names are all listed names, in the engine's order.
	Names []string
	// Adapters are the names that have a parent: LoRA adapters.
	Adapters []string
	// Aliases are further names of the replica's model: they have no parent, and its root.
	Aliases []string
	// Complete: the engine lists the adapters that it serves. Engines that do, vLLM and SGLang, give
	// every entry the field parent, which is null for a model.
	Complete bool
	// MaxModelLen is the maximum number of tokens of a request to the replica's model; 0 = unknown.
	MaxModelLen int
}

// equal reports whether two lists have the same contents.
func (l *ModelList) equal(o *ModelList) bool {
	return slices.Equal(l.Names, o.Names) && slices.Equal(l.Adapters, o.Adapters) && slices.Equal(l.Aliases, o.Aliases) &&
		l.Complete == o.Complete && l.MaxModelLen == o.MaxModelLen
}

// listedModel is an entry of a model list.
type listedModel struct {
	ID          string          `json:"id"`
	Root        json.RawMessage `json:"root"`   // of a model, the source of its weights
	Parent      json.RawMessage `json:"parent"` // nil if the field is missing
	MaxModelLen json.RawMessage `json:"max_model_len"`
}

// isAdapter reports whether the entry has a parent.
func (m *listedModel) isAdapter() bool { return textOf(m.Parent) != "" }

// textOf returns a JSON string; empty if it is missing or something else.
func textOf(raw json.RawMessage) string {
	var text string
	if len(raw) == 0 || json.Unmarshal(raw, &text) != nil {
		return ""
	}
	return text
}

// isAliasOf reports whether the entry is a further name of a model, as those of vLLM's --served-model-name are. A
// program in front of several engines also lists models without a parent: they have different roots.
func (m *listedModel) isAliasOf(model *listedModel) bool {
	root := textOf(m.Root)
	return m.Parent != nil && !m.isAdapter() && m.ID != model.ID && root != "" && root == textOf(model.Root)
}

// maxModelLen returns the entry's maximum number of tokens, 0 if it is missing or impossible.
func (m *listedModel) maxModelLen() int {
	var n int
	if len(m.MaxModelLen) == 0 || json.Unmarshal(m.MaxModelLen, &n) != nil {
		return 0
	}
	return max(0, n)
}

// parseModels parses an OpenAI model list. Entries without an id are ignored.
func parseModels(body []byte) ([]listedModel, error) {
	var list struct {
		Data []listedModel `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, errors.New("GET /v1/models returned an invalid model list")
	}
	return slices.DeleteFunc(list.Data, func(m listedModel) bool { return m.ID == "" }), nil
}

// newModelList summarises the entries of a list for a replica of the given model.
func newModelList(models []listedModel, model string) ModelList {
	var l ModelList
	own := &listedModel{ID: model}
	if i := slices.IndexFunc(models, func(m listedModel) bool { return m.ID == model }); i >= 0 {
		own = &models[i]
	}
	l.MaxModelLen = own.maxModelLen()
	for i := range models {
		m := &models[i]
		l.Names = append(l.Names, m.ID)
		l.Complete = l.Complete || m.Parent != nil
		switch {
		case m.isAdapter():
			l.Adapters = append(l.Adapters, m.ID)
		case m.isAliasOf(own):
			l.Aliases = append(l.Aliases, m.ID)
		}
	}
	return l
}

// defaultModel returns the first name of a list that is not an adapter's, or the first one if all are.
func defaultModel(models []listedModel) string {
	for i := range models {
		if !models[i].isAdapter() {
			return models[i].ID
		}
	}
	return models[0].ID
}

// verify requests the engine's model list and checks that it contains the replica's model. If none is
// configured, it identifies the model: the one identified before if it is still listed, else defaultModel.
func (w *watch) verify(ctx context.Context) error {
	w.planNextList()
	w.doubted.Store(false)
	status, body, err := w.get(ctx, "/v1/models")
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return &statusError{path: "/v1/models", status: status}
	}
	models, err := parseModels(body)
	if err != nil {
		return err
	}
	return w.applyModels(models, true)
}

// listDue reports whether the model list is to be read again.
func (w *watch) listDue() bool {
	now := time.Now()
	return !now.Before(w.listAt) || w.list.Complete && w.doubted.Load() && now.Sub(w.listedAt) >= recheckInterval
}

// planNextList sets the time of the next reading of the model list.
func (w *watch) planNextList() {
	w.listedAt = time.Now()
	w.listAt = w.listedAt.Add(jittered(w.prober.opts.ListInterval, w.jitter))
}

// readList reads the model list of a verified replica again. If that fails, the last list stays valid: the
// other requests of the probe determine whether the replica is ready. A list without the replica's model
// is an error.
func (w *watch) readList(ctx context.Context) error {
	w.planNextList()
	doubted := w.doubted.Swap(false) // a later rejection needs a later list
	status, body, err := w.source.get(ctx, "/v1/models", w.listedAt.Add(min(listTimeout, w.prober.opts.Timeout)))
	var models []listedModel
	if err == nil && status == http.StatusOK {
		models, err = parseModels(body)
	}
	if err != nil || status != http.StatusOK {
		if doubted {
			w.doubted.Store(true) // until a list is read
		}
		return nil //nolint:nilerr // see above
	}
	return w.applyModels(models, doubted)
}

// applyModels checks a model list and reports it if it changed. always: report it in any case, because the
// engine may be another process, or has rejected a name.
func (w *watch) applyModels(models []listedModel, always bool) error {
	list := newModelList(models, w.model)
	switch {
	case len(models) == 0:
		return errors.New("GET /v1/models returned no model")
	case w.config.Model != "" && !slices.Contains(list.Names, w.config.Model):
		return &modelError{list.Names, w.config.Model}
	case w.config.Model == "" && !slices.Contains(list.Names, w.model):
		w.model = defaultModel(models)
		list = newModelList(models, w.model)
		w.reportIdentity()
		always = true
	}
	if !always && list.equal(&w.list) {
		return nil
	}
	w.list = list
	if w.prober.opts.Listed != nil {
		w.prober.opts.Listed(w.config.ID, list)
	}
	return nil
}

// shortList formats the first few names of a list: an engine may serve many adapters.
func shortList(names []string) string {
	const maxListed = 4
	if len(names) > maxListed {
		return strings.Join(names[:maxListed], ", ") + fmt.Sprintf(" and %d more", len(names)-maxListed)
	}
	return strings.Join(names, ", ")
}
