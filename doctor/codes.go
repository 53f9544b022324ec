// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package doctor

// Code names what a check has found. Codes are stable: a program may act on them, and
// a later version neither removes one nor gives it another meaning.
type Code string

// The codes, by their names.
const (
	// The compute mode lets one process at a time use the GPU.
	ComputeModeExclusive Code = "compute-mode-exclusive"
	// The compute mode lets no process use the GPU.
	ComputeModeProhibited Code = "compute-mode-prohibited"
	// The compute mode is one that wcache does not know.
	ComputeModeUnknown Code = "compute-mode-unknown"
	// The configuration can't be used: nothing is loaded until it is mended.
	ConfigBroken Code = "config-broken"
	// SELinux or AppArmor confines this command, and may keep engines here from a daemon's descriptors.
	Confined Code = "confined"
	// SELinux or AppArmor keeps engines here from the daemon's descriptors.
	ConfinedApart Code = "confined-apart"
	// This is a container, and no daemon answers: engines here reach one outside only in its pid namespace.
	Container Code = "container"
	// This user may not connect to the control socket: its owner, its mode, SELinux or AppArmor forbids it.
	ControlSocketDenied Code = "control-socket-denied"
	// A process of another user listens on the control socket.
	ControlSocketForeign Code = "control-socket-foreign"
	// The daemon runs and its control socket is missing.
	ControlSocketMissing Code = "control-socket-missing"
	// The daemon waits in the kernel, for a disk, a network file system or a driver.
	DaemonBlocked Code = "daemon-blocked"
	// A daemon that was started by hand serves in the unit's place; its weights go when it ends.
	DaemonByHand Code = "daemon-by-hand"
	// The daemon's control group is frozen; it holds its weights.
	DaemonFrozen Code = "daemon-frozen"
	// The daemon says that something is wrong; its status has codes of its own.
	DaemonProblems Code = "daemon-problems"
	// The daemon does not answer, for a reason that does not show from outside.
	DaemonSilent Code = "daemon-silent"
	// The daemon's process is stopped, by SIGSTOP or Ctrl-Z; it holds its weights.
	DaemonStopped Code = "daemon-stopped"
	// A debugger has stopped the daemon; it holds its weights.
	DaemonTraced Code = "daemon-traced"
	// The daemon has ended, and its parent has not noticed.
	DaemonZombie Code = "daemon-zombie"
	// Taking a descriptor of the daemon, as engines do, failed.
	DescriptorNotTaken Code = "descriptor-not-taken"
	// This user may not open a device file of the GPU.
	DeviceNodeDenied Code = "device-node-denied"
	// A device file of the GPU is missing.
	DeviceNodeMissing Code = "device-node-missing"
	// The driver says that the GPU can't be used, or has no library here.
	DriverFault Code = "driver-fault"
	// The process that asks the driver could not be started, or failed.
	DriverNotAsked Code = "driver-not-asked"
	// The kernel module of the driver is not loaded.
	DriverNotLoaded Code = "driver-not-loaded"
	// The driver of the GPU does not answer.
	DriverSilent Code = "driver-silent"
	// The socket unit does not listen on a path where engines look.
	EnginePathNotListened Code = "engine-path-not-listened"
	// Another process serves a path where engines look.
	EnginePathTaken Code = "engine-path-taken"
	// The socket unit can't listen on a path where engines look.
	EnginePathUnusable Code = "engine-path-unusable"
	// The instance's name is the beginning of several GPUs' uuids.
	GPUAmbiguous Code = "gpu-ambiguous"
	// The state of the GPU could not be asked.
	GPUHealthUnknown Code = "gpu-health-unknown"
	// The GPU has not been used since the boot, so that the driver shows no uuid.
	GPUNoUUID Code = "gpu-no-uuid"
	// The driver shows no GPU.
	GPUNone Code = "gpu-none"
	// The GPU is cut into slices (MIG), which are instances of their own.
	GPUSliced Code = "gpu-sliced"
	// The driver shows no GPU of the instance's name.
	GPUUnknown Code = "gpu-unknown"
	// The GPU is lost, needs a reset or is missing.
	GPUUnusable Code = "gpu-unusable"
	// The last request of an engine was refused.
	LastRequestRefused Code = "last-request-refused"
	// Lingering is off: the weights go at the last logout.
	LingerOff Code = "linger-off"
	// A daemon runs and the user's service manager can't be reached: weights go when the daemon ends.
	ManagerMissing Code = "manager-missing"
	// The service manager of the user does not answer.
	ManagerSilent Code = "manager-silent"
	// The service manager of the user can't be reached, and no daemon answers.
	ManagerUnreachable Code = "manager-unreachable"
	// The GPU's memory can't become a descriptor.
	MemoryNotExportable Code = "memory-not-exportable"
	// The largest known model takes more memory than is free, even without what is held.
	MemoryShort Code = "memory-short"
	// The largest known model takes more memory than the device has.
	ModelTooLarge Code = "model-too-large"
	// The folders of models could not be searched.
	ModelsNotSearched Code = "models-not-searched"
	// A control daemon of MPS serves engines: only its clients share weights.
	MPSActive Code = "mps-active"
	// The limit of open files is lower than the descriptors that may be stored.
	OpenFilesLimit Code = "open-files-limit"
	// The daemon is in another pid namespace than this command.
	PidNamespace Code = "pid-namespace"
	// The kernel (Yama) lets engines take no descriptor of the daemon.
	PtraceForbidden Code = "ptrace-forbidden"
	// This user can't use its runtime directory, by the mode of that or of a folder above.
	RuntimeDirClosed Code = "runtime-dir-closed"
	// The runtime directory of the user is missing.
	RuntimeDirMissing Code = "runtime-dir-missing"
	// The runtime directory is another user's, lets others in, or is not a directory.
	RuntimeDirUnsafe Code = "runtime-dir-unsafe"
	// XDG_RUNTIME_DIR is not set, and the runtime directory is there.
	RuntimeDirUnset Code = "runtime-dir-unset"
	// The service has failed and is not started again.
	ServiceFailed Code = "service-failed"
	// The daemon died and was started again.
	ServiceRestarted Code = "service-restarted"
	// This user can't use the socket's directory, by the mode of that or of a folder above.
	SocketDirClosed Code = "socket-dir-closed"
	// The socket's directory is another user's, lets others in, or is not a directory.
	SocketDirUnsafe Code = "socket-dir-unsafe"
	// The socket belongs to another user.
	SocketForeign Code = "socket-foreign"
	// There is no socket at the instance's path.
	SocketMissing Code = "socket-missing"
	// The mode of the socket keeps its own user out.
	SocketModeClosed Code = "socket-mode-closed"
	// The mode of the socket lets other users in.
	SocketModeOpen Code = "socket-mode-open"
	// Another file is at the socket's path.
	SocketNotASocket Code = "socket-not-a-socket"
	// The file of the socket was removed, so that no engine can connect.
	SocketRemoved Code = "socket-removed"
	// Another process serves the instance's socket.
	SocketServedByOther Code = "socket-served-by-other"
	// The socket unit has failed.
	SocketUnitFailed Code = "socket-unit-failed"
	// The socket unit does not listen.
	SocketUnitInactive Code = "socket-unit-inactive"
	// The socket unit listens now and is not enabled.
	SocketUnitNotEnabled Code = "socket-unit-not-enabled"
	// The fd store is nearly full: what is loaded next may go when the daemon ends.
	StoreFull Code = "store-full"
	// The service's fd store keeps no descriptors, or too few: weights go when the daemon ends.
	StoreOff Code = "store-off"
	// There is no /tmp, or it can't be looked at.
	TmpMissing Code = "tmp-missing"
	// The service has another /tmp than this command, so that engines don't find its sockets there.
	TmpPrivate Code = "tmp-private"
	// A condition of the socket unit is not met.
	UnitCondition Code = "unit-condition"
	// The units don't start for root; engines are to run as another user.
	UnitForRoot Code = "unit-for-root"
	// The socket unit is masked.
	UnitMasked Code = "unit-masked"
	// The socket unit is not installed, or can't be loaded.
	UnitNotLoaded Code = "unit-not-loaded"
	// The service manager says nothing of a unit.
	UnitUnreadable Code = "unit-unreadable"
	// This command is in another user namespace than the machine's: a daemon outside refuses engines here.
	UserNamespace Code = "user-namespace"
	// The service has a user namespace of its own.
	UserNamespaceService Code = "user-namespace-service"
	// This user has no number outside of this user namespace.
	UserNamespaceUnmapped Code = "user-namespace-unmapped"
	// The daemon is of another version than the command.
	VersionDiffers Code = "version-differs"
	// The GPU belongs to Windows, which does not let processes share its memory.
	WSL2GPU Code = "wsl2-gpu"
)
