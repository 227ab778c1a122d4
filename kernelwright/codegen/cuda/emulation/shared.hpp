// Shared memory: which variables are in it, its poison, and the canaries around its dynamic part.

#if defined(KW_DEFINES_MACHINE)
namespace kw_emulation {

// Reads the library's own symbol table: tagged function-local thread_local variables are the __shared__ ones.
static void read_symbols(Machine& m) {
  if (m.symbols_read) return;
  m.symbols_read = true;
  Dl_info info{};
  std::vector<char> file;
  if (dladdr(reinterpret_cast<const void*>(&read_symbols), &info) && info.dli_fname) {
    std::ifstream stream(info.dli_fname, std::ios::binary);
    file.assign(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(file.data());
  if (file.size() < sizeof(Elf64_Ehdr) || memcmp(header->e_ident, ELFMAG, SELFMAG)) {
    fprintf(stderr, "CUDA emulation: cannot read its own library %s\n", info.dli_fname ? info.dli_fname : "?");
    abort();
  }
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(file.data() + header->e_shoff);
  size_t anchor = 0;
  for (unsigned s = 0; s < header->e_shnum; ++s) {
    if (sections[s].sh_type != SHT_SYMTAB) continue;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(file.data() + sections[s].sh_offset);
    const char* names = file.data() + sections[sections[s].sh_link].sh_offset;
    for (size_t i = 0; i < sections[s].sh_size / sizeof(Elf64_Sym); ++i) {
      if (ELF64_ST_TYPE(symbols[i].st_info) != STT_TLS || !symbols[i].st_size) continue;
      const std::string name = names + symbols[i].st_name;
      if (name.find("tls_anchor") != std::string::npos) anchor = symbols[i].st_value;
      if (name.compare(0, 3, "_ZZ") == 0 && name.find("B9kw_shared") != std::string::npos)
        m.shared_variables.push_back({name, symbols[i].st_value, symbols[i].st_size});
    }
  }
  for (auto& variable : m.shared_variables) variable.offset -= anchor;
}

// Static shared memory of a kernel, in bytes, without that of device functions it calls.
static size_t static_shared_bytes(Machine& m, const std::string& kernel) {
  const auto known = m.static_shared.find(kernel);
  if (known != m.static_shared.end()) return known->second;
  const std::string base = kernel.substr(0, kernel.find('<'));
  const std::string key = std::to_string(base.size()) + base;
  std::map<std::string, size_t> by_function;  // template instances are kept apart
  size_t largest = 0;
  for (const auto& variable : m.shared_variables) {
    if (variable.name.find(key) == std::string::npos) continue;
    size_t end = variable.name.rfind('E');  // _ZZ <function> E <length><variable>
    while (end != std::string::npos && end && !(end + 1 < variable.name.size() && isdigit(variable.name[end + 1])))
      end = variable.name.rfind('E', end - 1);
    size_t& sum = by_function[variable.name.substr(0, end)];
    sum += variable.bytes;
    largest = std::max(largest, sum);
  }
  return m.static_shared[kernel] = largest;
}

static void poison(char* data, size_t bytes) {
  const char* const pattern = reinterpret_cast<const char*>(&kPoison);
  while (bytes && reinterpret_cast<uintptr_t>(data) % 4) *data++ = pattern[3], --bytes;
  for (size_t i = 0; i < bytes / 4; ++i) memcpy(data + 4 * i, &kPoison, 4);
  for (size_t i = bytes / 4 * 4; i < bytes; ++i) data[i] = pattern[i % 4];
}

// Where the dynamic shared memory of a block of the cluster begins: close to the end of its part of the memory, of
// which the canary takes the rest.
static char* dynamic_of(Machine& m, unsigned block) {
  return m.dynamic + (block + 1) * m.dynamic_capacity - kCanary - (m.dynamic_bytes + 127) / 128 * 128;
}

static void poison_shared(Machine& m) {
  char* const anchor = const_cast<char*>(reinterpret_cast<volatile char*>(&tls_anchor));
  for (const auto& variable : m.shared_variables) poison(anchor + static_cast<ptrdiff_t>(variable.offset), variable.bytes);
  if (m.dynamic_bytes)
    for (unsigned block = 0; block < m.cluster; ++block) poison(dynamic_of(m, block), m.dynamic_bytes);
}

static void place_dynamic_shared(Machine& m, size_t bytes) {
  if (!m.dynamic) {
    m.dynamic_capacity = (kOptInShared + 4 * kCanary + kPage - 1) / kPage * kPage;
    const size_t all = kMostClustered * m.dynamic_capacity;
    m.dynamic = static_cast<char*>(mmap(nullptr, all + 2 * kPage, PROT_NONE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) + kPage;
    mprotect(m.dynamic, all, PROT_READ | PROT_WRITE);
  }
  m.dynamic_bytes = bytes;
  for (unsigned block = m.cluster; block-- > 0;) {
    m.dynamic_data = dynamic_of(m, block);
    poison(m.dynamic_data - kCanary, kCanary);
    poison(m.dynamic_data + bytes, static_cast<size_t>(m.dynamic + (block + 1) * m.dynamic_capacity -
                                                       (m.dynamic_data + bytes)));
  }
}

// Offset from the start of dynamic shared memory of a byte written outside it, or LONG_MIN.
static long damaged_canary(Machine& m, unsigned block) {
  m.dynamic_data = dynamic_of(m, block);
  char expected[kCanary + 128];
  poison(expected, sizeof(expected));
  if (memcmp(m.dynamic_data - kCanary, expected, kCanary)) {
    for (long i = -1; i >= -static_cast<long>(kCanary); --i)
      if (m.dynamic_data[i] != expected[kCanary + i]) return i;
  }
  char* const behind = m.dynamic_data + m.dynamic_bytes;
  const size_t bytes = static_cast<size_t>(m.dynamic + (block + 1) * m.dynamic_capacity - behind);
  std::vector<char> pattern(bytes + 4);
  char* copy = pattern.data() + (reinterpret_cast<uintptr_t>(behind) - reinterpret_cast<uintptr_t>(pattern.data())) % 4;
  poison(copy, bytes);
  for (size_t i = 0; i < bytes; ++i)
    if (behind[i] != copy[i]) return static_cast<long>(m.dynamic_bytes + i);
  return std::numeric_limits<long>::min();
}

}  // namespace kw_emulation
#endif
