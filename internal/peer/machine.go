package peer

// Member is what the cluster knows of a node.
type Member struct {
	// Address is where it listens for nodes, as host:port.
	Address string
	// Store is its data folder. Zero: not known yet, any is taken.
	Store StoreID
	// Boot is the least boot number that it can have. 0: not known.
	Boot uint64
	// Life is that of the start with that boot number. 0: not known.
	Life uint64
}

// machine knows which process is which node. It has no clock, lock or socket:
// its owner asks it about every hello.
type machine struct {
	self    hello
	members map[uint64]Member
	lives   map[uint64]life // node → the process that was met last
}

// life is a process that was met.
type life struct {
	store      StoreID
	boot, life uint64
	twice      bool // another process of the same folder and boot was met
}

func newMachine(self hello) *machine {
	return &machine{self: self, members: map[uint64]Member{}, lives: map[uint64]life{}}
}

// setMembers replaces what is known. Of a node that is gone nothing is remembered:
// ids are never given again.
func (m *machine) setMembers(members map[uint64]Member) {
	m.members = members
	for n := range m.lives {
		if _, ok := members[n]; !ok {
			delete(m.lives, n)
		}
	}
}

// meet judges a hello of a node whose certificate names the node subject, and
// remembers the process. ended tells of nodes whose present connections have to be
// closed, whether the hello is refused or not: they are of an earlier process, or
// of a folder that runs twice.
func (m *machine) meet(h hello, subject uint64) (ended []uint64, refused *ErrRefused) {
	if _, refused := m.self.version(h); refused != nil {
		return nil, refused
	}
	switch {
	case h.cluster != m.self.cluster:
		return nil, refuse(WrongCluster, "node %d belongs to cluster %s, and node %d to cluster %s: correct the address, or let it join this cluster with an empty data folder",
			h.node, h.cluster, m.self.node, m.self.cluster)
	case h.node != subject:
		return nil, refuse(WrongNode, "a node says that it is node %d and has the certificate of node %d: each data folder needs the certificate that was made for it", h.node, subject)
	case h.store == m.self.store:
		return nil, refuse(StoreTwice, "node %d and node %d run with the same data folder %s, or copies of it: stop one of them, and let it join with an empty data folder",
			h.node, m.self.node, h.store)
	case h.node == m.self.node:
		return nil, refuse(WrongNode, "two processes call themselves node %d, with data folders %s and %s: stop the one whose folder is not that node's", h.node, h.store, m.self.store)
	case h.to != m.self.node:
		return nil, refuse(WrongNode, "node %d was called, and this is node %d: its address is not known rightly there", h.to, m.self.node)
	}
	member, ok := m.members[h.node]
	switch {
	case !ok:
		return nil, refuse(NotMember, "node %d is not in the cluster as node %d knows it: it was removed, or has just joined and is tried again", h.node, m.self.node)
	case member.Store != StoreID{} && member.Store != h.store:
		return nil, refuse(WrongStore, "node %d has data folder %s, and the cluster knows it with %s: start it with its own folder, or replace the node if that is lost", h.node, h.store, member.Store)
	case h.boot < member.Boot:
		return nil, olderBoot(h, member.Boot)
	case !h.knows(Start{member.Boot, member.Life}):
		return nil, refuse(OlderBoot, "the data folder %s of node %d does not know of its start number %d: it is an earlier copy of the folder, and running it would lose what was acknowledged since; stop it, and start the node on its own folder, or let a new node join and replace it",
			h.store, h.node, member.Boot)
	}
	for n, l := range m.lives {
		if l.store == h.store && n != h.node {
			l.twice = true
			m.lives[n] = l
			return []uint64{n, h.node}, storeTwice(h)
		}
	}
	last, met := m.lives[h.node]
	switch {
	case met && last.store != h.store:
		return nil, refuse(WrongStore, "node %d has data folder %s, and was met with %s before: start it with its own folder, or replace the node if that is lost", h.node, h.store, last.store)
	case met && h.boot < last.boot:
		return nil, olderBoot(h, last.boot)
	case met && h.boot == last.boot && (last.twice || h.life != last.life):
		last.twice = true
		m.lives[h.node] = last
		return []uint64{h.node}, storeTwice(h)
	case met && h.boot == last.boot:
		return nil, nil
	}
	m.lives[h.node] = life{store: h.store, boot: h.boot, life: h.life}
	if !met {
		return nil, nil
	}
	return []uint64{h.node}, nil
}

func olderBoot(h hello, known uint64) *ErrRefused {
	return refuse(OlderBoot, "node %d is at its start number %d, and its data folder %s has been started %d times: this is an earlier process or an earlier copy of the folder, stop it", h.node, h.boot, h.store, known)
}

func storeTwice(h hello) *ErrRefused {
	return refuse(StoreTwice, "data folder %s of node %d runs twice, at the same start number %d: stop the copy, and start the node again", h.store, h.node, h.boot)
}
