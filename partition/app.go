package partition

// App is the state that a partition's log drives beside its messages (groups
// and their deliveries; for the metadata log, the cluster's map) and the hand
// that acts for it where the log is led. It is one passive object: the host
// calls it from one goroutine, or from a simulator's one thread, and it neither
// blocks, nor reads a clock, nor starts anything.
//
// Apply, and nothing else, changes replicated state. Event and Drive act on
// what only the leader keeps in memory (who waits for work, what is reserved)
// and propose; what they propose decides nothing until it is applied.
type App interface {
	// Apply runs one committed command, the same on every replica. The result
	// goes to the proposer if it is on this node. An error means that state can
	// no longer be trusted (a command that does not decode): the replica stops.
	// Refusals that a caller should see are results, not errors.
	Apply(at Position, cmd []byte) (result any, err error)
	// Checkpoint writes to Rows whatever changed since the last call, so that
	// Rows alone hold the state of this moment.
	Checkpoint() error
	// Lead tells that this node began (every entry of earlier terms is
	// applied) or ceased to lead. Ceasing drops what only a leader keeps.
	Lead(leading bool)
	// Event takes what Host.Post was given, in order.
	Event(ev any)
	// Drive is the leader's turn: after commands were applied, messages proposed
	// or stored, events taken, or the time it asked for has come. It returns commands to
	// propose, in order, and when it wants its next turn at the latest (0: not
	// before something happens).
	Drive(now Millis, log Log) (cmds [][]byte, wake Millis)
}

// Breaker is an App that others wait for, and that tells them why its partition
// stops: Break comes just before the last Lead. The App's state is not to be
// trusted then. Where there are other replicas, one of them leads next, and it does not
// come.
type Breaker interface{ Break(why *ErrDamaged) }

// Unheard is an event whose sender waits for the App: it is told when no App
// will take the event, since the partition stopped or went on its way there.
// It must not block.
type Unheard interface{ Unheard(err error) }

// Log is the partition's messages as an App reads them in its turn: what is
// applied, and behind it what this leader has proposed. Of the latter it knows
// all but which of them turn out to be duplicates, which have no offset.
type Log interface {
	// Position is what is applied.
	Position() Position
	// Foreseen is the end of the log when all that is proposed so far is applied,
	// if nothing of it is a duplicate. What Drive returns now stands in the log
	// behind exactly those messages and no others. So a command finds a
	// Position.End of Foreseen if all went as foreseen, and a lower one if not.
	Foreseen() Offset
	// Keys calls fn with each message from offset from on, in order, until fn
	// returns false, Foreseen is reached or about maxBytes of log were read. The
	// hash is the message's key hash; size its key, headers and body in bytes.
	// An *ErrUnreadable tells which messages it cannot go beyond: it was called
	// with those before. They may never read again, so whoever asks for them must
	// not ask again in every turn.
	Keys(from Offset, maxBytes int, fn func(o Offset, keyHash uint64, size int) bool) error
}

// Rows is an App's table: what does not fit in memory, and the checkpoint of
// what does. Writes stay in memory until the next checkpoint, which puts them
// on disk together with the index of the last entry that they include; so after
// a restart Rows are what they were at that index, and the entries behind it
// are applied again. Not safe for concurrent use: only the App's own calls may
// touch it, and Host.View.
type Rows interface {
	// Get returns a row, nil when there is none. The caller must not change it.
	Get(key []byte) ([]byte, error)
	// Put sets a row; key and value are copied.
	Put(key, value []byte)
	// Delete removes a row.
	Delete(key []byte)
	// Scan calls fn with the rows whose key starts with prefix and is not below
	// from (nil: the first), in key order, until fn returns false. fn must not
	// write.
	Scan(prefix, from []byte, fn func(key, value []byte) bool) error
}
